"""Ablations: output beside output, effects of blocks and ranks, distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Distributions,
    Figure,
    Heatmap,
    ImageGrid,
    Intervals,
    Lines,
    Panel,
    Provenance,
    Scale,
    Sentence,
    Series,
)
from damcha.figures.style import number, symmetric_scale
from damcha.figures.table import Cell, Table
from damcha.figures.words import origin, sentence_instead


def pictures_figure(
    pictures: Array, titles: Sequence[str], losses: Array, provenance: Provenance = UNKNOWN
) -> Figure:
    """Draw what a model predicts under each intervention, and below it the change from the first.

    `pictures` is uint8 [n, S, S, C].
    """
    panels = [
        Panel(ImageGrid((picture,)), f"{title}: {number(float(loss))}", x_ticks=(), y_ticks=())
        for picture, title, loss in zip(pictures, titles, losses, strict=True)
    ]
    change = pictures.astype(np.float32).mean(-1) / 127.5
    change = change - change[0]
    panels[0] = Panel(
        panels[0].mark, panels[0].title, x_ticks=(), y_ticks=(), row_title="prediction"
    )
    scale = symmetric_scale(change, label="change of pixels") if change.any() else None
    for k, difference in enumerate(change):
        names = tuple(f"row {i}" for i in range(len(difference)))
        across = tuple(f"column {j}" for j in range(difference.shape[1]))
        if scale is None or not difference.any():
            mark: Heatmap | Sentence = Sentence("no change")
        else:
            mark = Heatmap(difference, scale, names, across)
        panels.append(Panel(mark, "", x_ticks=(), y_ticks=(), row_title="change" if k == 0 else ""))
    return _figure(
        "ablation",
        panels,
        "Predictions under each intervention",
        provenance,
        "The number is the loss; the lower row is the change of the pixels, in [-1, 1], "
        "from the first.",
        {"pictures": pictures, "loss": losses},
        len(pictures),
    )


def nats_figure(
    nats: Array,
    titles: Sequence[str],
    labels: Sequence[str],
    losses: Array,
    provenance: Provenance = UNKNOWN,
    *,
    unit: str = "byte",
) -> Figure:
    """Draw how much more each symbol surprises under each intervention, in nats; [n, length]."""
    change = (nats - nats[0]).astype(np.float32)
    rows = tuple(
        f"{title} ({number(float(loss))})" for title, loss in zip(titles, losses, strict=True)
    )
    names = tuple(f"{k}: {label}" for k, label in enumerate(labels))
    sentence = sentence_instead(change, "Change of the surprise")
    if sentence:
        panels = [Panel(Sentence(sentence))]
    else:
        scale = symmetric_scale(change, label="nats more than full")
        mark = Heatmap(change, scale, rows, names, cell_aspect=None)
        ticks = tuple((float(k), row) for k, row in enumerate(rows))
        # Every third letter of a text would only mislead.
        letters = tuple(
            (float(k), label) for k, label in enumerate(labels if len(labels) < 49 else ())
        )
        panels = [Panel(mark, "", unit, "", letters, ticks)]
    return _figure(
        "ablation",
        panels,
        f"Surprise at each {unit}, against the full metric",
        provenance,
        f"In brackets: mean surprise in nats a {unit}.",
        {"nats": nats, "loss": losses},
        1,
    )


def probabilities_figure(
    probabilities: Array,
    titles: Sequence[str],
    class_names: Sequence[str],
    losses: Array,
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw the class probabilities under each intervention, [n, classes]."""
    rows = tuple(titles)
    ticks = tuple((float(k), title) for k, title in enumerate(rows))
    classes = tuple((float(k), name) for k, name in enumerate(class_names))
    scale = Scale((0.0, 1.0), "sequential", "probability")
    mark = Heatmap(
        probabilities.astype(np.float32),
        scale,
        rows,
        tuple(class_names),
        write_values=True,
        cell_aspect=None,
    )
    return _figure(
        "ablation",
        [Panel(mark, "", "", "", classes, ticks)],
        "Class probabilities under each intervention",
        provenance,
        "",
        {"probabilities": probabilities, "loss": losses},
        1,
    )


def knock_out_figure(
    effects: Array, heads: Array, unit: str, provenance: Provenance = UNKNOWN
) -> Figure:
    """Draw the change of the loss when a block is removed [h, h], and when a head is [2, h]."""
    h = len(effects)
    names = tuple(f"query head {a}" for a in range(h))
    across = tuple(f"key head {b}" for b in range(h))
    ticks = tuple((float(a), str(a)) for a in range(h))
    both = np.concatenate([effects, heads])
    sentence = sentence_instead(both, "Change of the loss")
    if sentence:
        return _figure(
            "knock-out",
            [Panel(Sentence(sentence))],
            "Blocks removed one by one",
            provenance,
            "",
            {"blocks": effects, "heads": heads},
            1,
        )
    own = symmetric_scale(effects, label="change of loss") if effects.any() else None
    of_heads = symmetric_scale(heads, label="change of loss") if heads.any() else None
    panels = []
    if own is not None:
        mark = Heatmap(effects.astype(np.float32), own, names, across, clickable=False)
        panels.append(Panel(mark, "one block", "key head b", "query head a", ticks, ticks))
    if of_heads is not None:
        lines = ("all blocks of query head", "all blocks of key head")
        mark = Heatmap(
            heads.astype(np.float32), of_heads, lines, tuple(f"head {a}" for a in range(h))
        )
        panels.append(Panel(mark, "one head", "head", "", ticks, ((0.0, "query"), (1.0, "key"))))
    return _figure(
        "knock-out",
        panels,
        "Blocks and heads removed one by one",
        provenance,
        f"Change of the loss ({unit}); above zero, the answer needs the block.",
        {"blocks": effects, "heads": heads},
        1,
    )


def rank_figure(ranks: Array, losses: Array, unit: str, provenance: Provenance = UNKNOWN) -> Figure:
    """Draw the loss with each head metric cut to a rank; the last rank cuts nothing."""
    full = np.full(len(ranks), losses[-1])
    series = (Series("cut to rank", ranks, losses), Series("not cut", ranks, full))
    panel = Panel(Lines(series, markers=True), "", "rank of each R_a", "loss")
    return _figure(
        "rank",
        [panel],
        "Loss over the rank of the head metrics",
        provenance,
        f"Loss ({unit}) when each R_a keeps its largest singular values only.",
        {"ranks": ranks, "losses": losses},
        1,
    )


def evaluation_figure(
    losses: Mapping[str, Array],
    differences: Mapping[str, tuple[float, float, float]],
    unit: str,
    n: int,
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw the losses of held-out inputs under each intervention, and the paired differences.

    `losses` maps titles to [n]; `differences` to (mean difference to the first, low, high).
    """
    names = tuple(losses)
    boxes = Distributions(names, tuple(np.asarray(values) for values in losses.values()))
    centres, lows, highs = (np.array(column) for column in zip(*differences.values(), strict=True))
    intervals = Intervals(tuple(differences), centres, lows, highs, reference=0.0)
    panels = [
        Panel(boxes, "losses", "loss"),
        Panel(intervals, f"paired difference to {names[0].lower()}", "difference of loss"),
    ]
    return _figure(
        "ablation-set",
        panels,
        f"{n:,} held-out inputs under each intervention",
        provenance,
        f"Loss: {unit}. Boxes: quartiles and the middle 90 %, diamond or dashed line: "
        "mean. Differences: mean over inputs with its 95 % bootstrap interval.",
        {f"loss.{name}": np.asarray(values) for name, values in losses.items()},
        1,
    )


def over_epochs_figure(
    runs: Mapping[str, Mapping[str, tuple[Array, Array]]],
    unit: str,
    n: int,
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw the mean loss under each intervention over epochs, a panel a run.

    `runs` maps a run to its interventions' (epochs, mean losses).
    """
    panels = []
    for name, lines in runs.items():
        series = tuple(Series(title, *pair) for title, pair in lines.items())
        panels.append(Panel(Lines(series, markers=True), name, "epoch", "mean loss"))
    return _figure(
        "ablation-epochs",
        panels,
        f"{n:,} held-out inputs under each intervention, over epochs",
        provenance,
        f"Mean loss ({unit}).",
        {},
        min(2, len(panels)),
    )


def evaluation_table(
    rows: Sequence[tuple[str, float, float, float, float, tuple[float, float, float]]],
    unit: str,
    n: int,
    top: int,
    source: str,
) -> Table:
    """The same as a table: title, mean, quartiles, Top-50, paired difference with its interval."""
    cells: tuple[tuple[Cell, ...], ...] = tuple(tuple(row) for row in rows)
    return Table(
        ("Metric", "Mean", "q25", "q75", f"Top-{top}", "Difference to full [95 %]"),
        cells,
        f"Ablations of the cross-head metric on {n:,} held-out inputs ({source}). Loss: {unit}. "
        f"Top-{top}: mean of the {top} lowest. Differences are paired; bootstrap intervals.",
        "tab:ablation",
    )


def runs_table(
    rows: Sequence[tuple[str, int, str, float, float, float, float, tuple[float, float, float]]],
    unit: str,
    n: int,
    top: int,
    source: str,
) -> Table:
    """The same of several runs: run, epoch, title, and the numbers; a block of rows a run."""
    last = [k for k in range(len(rows) - 1) if rows[k][:2] != rows[k + 1][:2]]
    return Table(
        ("Run", "Epoch", "Metric", "Mean", "q25", "q75", f"Top-{top}", "Difference to full [95 %]"),
        tuple(tuple(row) for row in rows),
        f"Ablations of the cross-head metrics of runs on the same {n:,} held-out inputs "
        f"({source}). Loss: {unit}. Top-{top}: mean of the {top} lowest. Differences are paired, "
        "within a run; bootstrap intervals.",
        "tab:ablation-runs",
        rules=tuple(last),
    )


def _figure(
    name: str,
    panels: Sequence[Panel],
    title: str,
    provenance: Provenance,
    words: str,
    arrays: Mapping[str, Array],
    n_columns: int,
) -> Figure:
    return Figure(
        name=name,
        panels=tuple(panels),
        n_columns=n_columns,
        title=title,
        caption=" ".join(filter(None, [f"{title}{origin(provenance)}.", words])),
        provenance=provenance,
        arrays=arrays,
        column="double",
    )
