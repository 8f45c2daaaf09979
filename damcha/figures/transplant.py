"""What one input's model answers with its own metric, and with another's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from damcha.figures.spec import (
    UNKNOWN,
    Array,
    Figure,
    Heatmap,
    ImageGrid,
    Lines,
    Panel,
    Provenance,
    Scale,
    Sentence,
    Series,
    Tokens,
)
from damcha.figures.style import number, symmetric_scale

OWN, OTHER = "own metric", "the other's"
SAME = "Not changed: the answer is the same with either metric."


def pictures_figure(
    seen: Array, pictures: Array, losses: Array, words: str, provenance: Provenance = UNKNOWN
) -> Figure:
    """Draw the picture seen, both predictions, and their difference.

    `seen` is uint8 [S, S(, C)], `pictures` uint8 [2, S, S, C]: with its own metric, the other's.
    """
    change = (pictures[1].astype(np.float32) - pictures[0]).mean(-1) / 127.5
    mark: Heatmap | Sentence = Sentence(SAME)
    if change.any():
        rows = tuple(f"row {i}" for i in range(change.shape[0]))
        columns = tuple(f"column {j}" for j in range(change.shape[1]))
        mark = Heatmap(change, symmetric_scale(change, label="change of pixels"), rows, columns)
    titles = ("seen", _loss(OWN, losses[0]), _loss(OTHER, losses[1]))
    images = (seen, *pictures)
    panels = [
        Panel(ImageGrid((image,)), title, x_ticks=(), y_ticks=())
        for image, title in zip(images, titles, strict=True)
    ]
    panels.append(Panel(mark, "change", x_ticks=(), y_ticks=()))
    arrays = {"pictures": pictures, "loss": losses}
    return _figure(panels, 4, words, "Change of the pixels, in [−1, 1].", arrays, provenance)


def nats_figure(
    nats: Array,
    labels: Sequence[str],
    losses: Array,
    words: str,
    provenance: Provenance = UNKNOWN,
    *,
    unit: str = "byte",
) -> Figure:
    """Draw the text coloured by the change of each symbol's surprise, and both as lines; [2, n]."""
    change = (nats[1] - nats[0]).astype(np.float32)
    mark: Tokens | Sentence = Sentence(SAME)
    if np.abs(change).max() > 1e-4:  # two rows of a batch may round differently
        mark = Tokens(tuple(labels), change, symmetric_scale(change, label="nats more"))
    at = np.arange(nats.shape[1])
    series = tuple(
        Series(_loss(name, loss), at, row, tuple(labels))
        for name, row, loss in zip((OWN, OTHER), nats, losses, strict=True)
    )
    lines: Lines | Sentence = Lines(series, markers=nats.shape[1] <= 96)
    if nats.shape[1] == 1:
        lines = Sentence(f"One {unit}: {number(float(nats[0, 0]))}, {number(float(nats[1, 0]))}.")
    panels = [
        Panel(mark, f"change of each {unit}'s surprise"),
        Panel(lines, "surprise", unit, "nats"),
    ]
    arrays = {"nats": nats, "loss": losses}
    caption = f"Surprise: −log p of each {unit}, in nats."
    return _figure(panels, 1, words, caption, arrays, provenance)


def probabilities_figure(
    probabilities: Array,
    classes: Sequence[str],
    losses: Array,
    words: str,
    provenance: Provenance = UNKNOWN,
) -> Figure:
    """Draw the class probabilities with either metric, and their difference; [2, classes]."""
    rows = tuple((float(k), name) for k, name in enumerate(classes))
    both = Heatmap(
        np.ascontiguousarray(probabilities.T, np.float32),
        Scale((0.0, 1.0), "sequential", "probability"),
        tuple(classes),
        (OWN, OTHER),
        write_values=True,
        cell_aspect=None,
    )
    change = (probabilities[1] - probabilities[0]).astype(np.float32)[:, None]
    mark: Heatmap | Sentence = Sentence(SAME)
    if np.abs(change).max() > 1e-5:
        scale = symmetric_scale(change, label="change")
        mark = Heatmap(
            change, scale, tuple(classes), ("change",), write_values=True, cell_aspect=None
        )
    columns = ((0.0, "own"), (1.0, "the other's"))
    panels = [
        Panel(both, "class probabilities", "metric", "", columns, rows),
        Panel(mark, "change", "", "", (), ()),
    ]
    arrays = {"probabilities": probabilities, "loss": losses}
    said = "The loss is that of the class that the model gives with its own metric."
    return _figure(panels, 2, words, said, arrays, provenance)


def _loss(name: str, loss: float) -> str:
    return f"{name}, loss {number(float(loss))}"


def _figure(
    panels: Sequence[Panel],
    n_columns: int,
    words: str,
    said: str,
    arrays: dict[str, Array],
    provenance: Provenance,
) -> Figure:
    before, after = (float(loss) for loss in arrays["loss"])
    change = f"{'+' if after > before else ''}{number(after - before)}"
    if abs(after - before) < 1e-6 * max(1.0, abs(before)):  # two rows of a batch may round apart
        change = "not changed"
    return Figure(
        name="transplant",
        panels=tuple(panels),
        n_columns=n_columns,
        title="Answers with either metric",
        caption=f"{words} Loss {number(before)} → {number(after)} ({change}). {said}",
        provenance=provenance,
        arrays=arrays,
        column="double",
    )
