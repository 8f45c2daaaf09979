"""The tables: what is measured, and the table with the paper's numbers beside ours."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from damcha.analysis import scaling
from damcha.analysis.ablation import Evaluation, Summary, summarise
from damcha.analysis.progress import Progress, relayed
from damcha.analysis.study import Estimate, Trained, study
from damcha.analysis.summary import TOP, resamples
from damcha.analysis.summary import interval as of_mean
from damcha.checkpoint import atomic_write, pick_device
from damcha.errors import InputError
from damcha.figures.scaling import scaling_figure, scaling_table, table2
from damcha.figures.spec import Figure, Lines, Panel, Provenance, Series
from damcha.figures.study import study_figure
from damcha.figures.table import Cell, Table
from damcha.gallery.ablation import USUAL
from damcha.reproduce.experiment import Arrays, Desk, Outcome, Steps

ABSENT = "–"
"""Printed where the paper's number is not at hand, or nothing was measured."""
NOT_AT_HAND = f"{ABSENT}: not at hand."
FID_TOP50 = (58.64, 63.03, 65.13)
"""The paper's three figures for DAMCHA's FID@Top-50 on CIFAR-10, which contradict each other."""
PARTS = USUAL[:5]
"""Full, diagonal only, off-diagonal only, and the last two norm-matched."""


# ---------------------------------------------------------------- systems beside each other


def compared(desk: Desk, measure: str = "loss") -> Steps[dict[str, dict[str, Arrays]]]:
    """Per-example numbers of every system: data set → system → name → [seeds, n]."""
    found: dict[str, dict[str, Arrays]] = {}
    for one in desk.made:
        got = yield from desk.scores(one.snapshot)
        own = found.setdefault(one.snapshot.run.config.data.dataset, {}).setdefault(one.system, {})
        for name, values in got.items():
            own[name] = np.concatenate((own[name], values[None])) if name in own else values[None]
    return found


def summaries(systems: Mapping[str, Arrays], name: str = "loss") -> tuple[Summary, ...]:
    """Numbers of each system; of several seeds, an example's loss is the mean over them."""
    loss = np.stack([arrays[name].mean(0) for arrays in systems.values()])
    return summarise(Evaluation(tuple(systems), loss))


def interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float]:
    """Mean over examples with its 95 % percentile bootstrap interval; `values` is [seeds, n]."""
    own = values.mean(0)
    return float(own.mean()), *of_mean(own, resamples(len(own), seed))


def seed_spread(values: NDArray[np.float64]) -> float | None:
    """Standard deviation over seeds of the mean loss; None of one seed."""
    return float(values.mean(1).std(ddof=1)) if len(values) > 1 else None


def numbers(systems: Mapping[str, Arrays]) -> dict[str, Any]:
    """Everything that is known of systems on one data set, fit for JSON."""
    return {
        one.name: {
            **asdict(one),
            **{name: interval(values) for name, values in systems[one.name].items()},
            "seed_means": systems[one.name]["loss"].mean(1).tolist(),
            "seed_sd": seed_spread(systems[one.name]["loss"]),
        }
        for one in summaries(systems)
    }


def _sets(desk: Desk) -> str:
    """Names of the held-out examples, for captions."""
    configs = {one.snapshot.run.config.data.dataset: one for one in desk.made}
    return "; ".join(desk.data(one.snapshot.run.config.data).name for one in configs.values())


def _caption(desk: Desk, words: str) -> str:
    several = max(len(desk.runs(one.system)) for one in desk.made)
    seeds = f"{several} seeds" if several > 1 else "one seed each"
    return (
        f"{words} Ours: {_sets(desk)}, {seeds}. Differences: paired, to the first row of a set, "
        f"with 95 % bootstrap intervals over examples. Paper: {NOT_AT_HAND}"
    )


def _rules(sizes: Sequence[int]) -> tuple[int, ...]:
    ends = np.cumsum(sizes)[:-1] - 1
    return tuple(int(end) for end in ends)


def completion(desk: Desk) -> Iterator[Progress | Outcome]:
    """Table 1: images by mechanism."""
    found = yield from compared(desk)
    fids: dict[tuple[str, str], list[tuple[float, float]]] = {}
    reasons: dict[str, None] = {}
    for one in desk.made:
        try:
            got = yield from desk.fids(one.snapshot)
        except InputError as error:  # too few pictures to learn features from
            reasons[str(error)] = None
            continue
        key = (one.snapshot.run.config.data.dataset, one.system)
        fids.setdefault(key, []).append((float(got["fid"][0]), float(got["fid_top"][0])))
    means = {key: np.mean(seeds, axis=0) for key, seeds in fids.items()}
    yield completion_outcome(desk, found, means, "; ".join(reasons))


def completion_outcome(
    desk: Desk,
    found: Mapping[str, Mapping[str, Arrays]],
    fids: Mapping[tuple[str, str], NDArray[np.float64]],
    reason: str = "",
) -> Outcome:
    """Table 1 from losses, and from FID and FID@Top-50 of (data set, system), or why none."""
    rows: list[tuple[Cell, ...]] = []
    published = " / ".join(f"{value:.2f}" for value in FID_TOP50)
    for data, systems in found.items():
        for one in summaries(systems):
            measured = fids.get((data, one.name))
            fid = (ABSENT, ABSENT) if measured is None else measured.tolist()
            rows.append((
                data, one.name, one.mean, one.q25, one.q75, one.top50,
                (one.difference, *one.interval), *fid, ABSENT,
                published if one.name == "DAMCHA" else ABSENT,
            ))  # fmt: skip
    words = f"Images by mechanism: MSE, pixels in [-1, 1]; Top-{TOP}: lowest losses."
    for data, network in desk.networks.items():
        words += (
            f" FID on {data}: of predictions, by features of {network}; one value, no interval."
        )
    if reason:
        words += f" FID was not measured everywhere ({reason})."
    note = (
        f"{_caption(desk, words)} For DAMCHA's FID@Top-50 on CIFAR-10 the paper has three figures "
        "that contradict each other; FIDs of other data or features cannot be set beside them."
    )
    columns = (
        "Data", "System", "MSE", "q25", "q75", f"Top-{TOP}", "Difference [95 %]",
        "FID", f"FID@Top-{TOP}", "Paper: MSE", f"Paper: FID@Top-{TOP}",
    )  # fmt: skip
    table = Table(
        columns, tuple(rows), note, "tab:table1", rules=_rules([len(s) for s in found.values()])
    )
    values = {data: numbers(systems) for data, systems in found.items()}
    for (data, name), fid in fids.items():
        values[data][name] |= {"fid": float(fid[0]), "fid_top50": float(fid[1])}
    return Outcome(values, table, paper={"DAMCHA, CIFAR-10, FID@Top-50": FID_TOP50})


def generators(desk: Desk) -> Iterator[Progress | Outcome]:
    """Table 4: where the metric comes from."""
    found = yield from compared(desk)
    rows: list[tuple[Cell, ...]] = []
    for data, systems in found.items():
        for one in summaries(systems):
            run = desk.runs(one.name)[0].run
            row = (data, one.name, run.n_weights(), one.mean, one.q25, one.q75, one.top50)
            rows.append((*row, (one.difference, *one.interval), ABSENT))
    columns = (
        "Data", "Generator", "Weights", "Loss", "q25", "q75", f"Top-{TOP}", "Difference [95 %]",
        "Paper",
    )  # fmt: skip
    words = "Ablations of the generator: one f_θ shared, one for each layer, none (w/o f(x))."
    table = Table(columns, tuple(rows), _caption(desk, words), "tab:table4")
    yield Outcome({data: numbers(systems) for data, systems in found.items()}, table)


def language(desk: Desk) -> Iterator[Progress | Outcome]:
    """Table 5: bytes of text by mechanism."""
    found = yield from compared(desk)
    rows: list[tuple[Cell, ...]] = [
        (
            data, one.name, one.mean, one.q25, one.q75, one.mean / math.log(2), math.exp(one.mean),
            (one.difference, *one.interval), ABSENT,
        )
        for data, systems in found.items()
        for one in summaries(systems)
    ]  # fmt: skip
    columns = (
        "Data", "System", "NLL", "q25", "q75", "Bits a byte", "Perplexity a byte",
        "Difference [95 %]", "Paper",
    )  # fmt: skip
    note = _caption(desk, "Text by mechanism: nats a byte.")
    rules = _rules([len(systems) for systems in found.values()])
    table = Table(columns, tuple(rows), note, "tab:table5", rules=rules)
    values = {data: numbers(systems) for data, systems in found.items()}
    for systems_ in values.values():
        for own in systems_.values():
            own["bits_per_byte"] = own["mean"] / math.log(2)
            own["perplexity"] = math.exp(own["mean"])
    yield Outcome(values, table)


def variants(desk: Desk) -> Iterator[Progress | Outcome]:
    """The study of text: validation losses over seeds, and how they got there."""
    trained = [
        Trained(
            one.system, one.snapshot.run.config,
            {line["step"]: line["valid_loss"] for line in one.snapshot.run.metrics},
        )
        for one in desk.made
    ]  # fmt: skip
    found = study(trained, max(trained[0].losses), ("MHA", "paper"))
    columns = (
        "Form", "Weights", "Settings", "Loss [95 %]", "To MHA [95 %]", "To the paper's [95 %]",
    )  # fmt: skip
    rows = [
        (
            one.name, one.parameters,
            " ".join(f"{k}={_setting(v)}" for k, v in one.settings.items()) or "the preset's",
            *(_estimate(e) for e in (one.loss, *map(one.differences.get, ("MHA", "paper")))),
        )
        for one in sorted(found.variants, key=lambda one: one.loss[1])
    ]  # fmt: skip
    seeds = len(found.variants[0].seeds)
    words = "; intervals: Student's t" if seeds > 1 else "; one seed has no interval"
    note = (
        f"Forms of DAMCHA on bytes of English, best first: nats a byte after {found.step} steps on "
        f"{trained[0].config.train.validation_examples} held-out examples. Ours, {seeds} "
        f"seed{'s' * (seeds > 1)}. Differences are paired by seed{words}."
    )
    figure = replace(study_figure(found, made(desk)), name=desk.experiment.name)
    yield Outcome(
        asdict(found), Table(columns, tuple(rows), note, f"tab:{desk.experiment.name}"),
        {desk.experiment.name: figure},
    )  # fmt: skip


def _setting(value: Any) -> str:
    """A value as ``--set field=value`` takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _estimate(found: Estimate | None) -> Cell:
    """Mean with its interval, or alone where one seed has none."""
    if found is None:
        return ABSENT
    low, mean, high = found
    return mean if math.isnan(low) else (mean, low, high)


def classification(desk: Desk) -> Iterator[Progress | Outcome]:
    """Table 6: Top-1 and Top-5."""
    found = yield from compared(desk)
    rows: list[tuple[Cell, ...]] = []
    for data, systems in found.items():
        gaps = {name: summaries(systems, name) for name in ("top1", "top5")}
        for k, one in enumerate(summaries(systems)):
            own = systems[one.name]
            first = gaps["top1"][k]
            rows.append((
                data, one.name, interval(own["top1"]), interval(own["top5"]),
                (first.difference, *first.interval), one.mean, ABSENT, ABSENT,
            ))  # fmt: skip
    columns = (
        "Data", "System", "Top-1 [95 %]", "Top-5 [95 %]", "Difference of Top-1 [95 %]",
        "Cross-entropy", "Paper: Top-1", "Paper: Top-5",
    )  # fmt: skip
    note = _caption(desk, "Image classification: share right among the 1 and 5 likeliest classes.")
    table = Table(columns, tuple(rows), note, "tab:table6")
    yield Outcome({data: numbers(systems) for data, systems in found.items()}, table)


# ---------------------------------------------------------------- parts of the metric


def parts(desk: Desk) -> Iterator[Progress | Outcome]:
    """Table 3: f_θ of several depths, full and without parts of M, plain and norm-matched."""
    rows: list[tuple[Cell, ...]] = []
    values: dict[str, Any] = {}
    labels = list(dict.fromkeys(one.system for one in desk.made))
    means: dict[str, list[tuple[float, float, float]]] = {}
    for label in labels:
        seeds = []
        for snapshot in desk.runs(label):
            got = yield from desk.ablations(snapshot, PARTS)
            seeds.append(got)
        systems: dict[str, Arrays] = {
            name: {"loss": np.stack([got[name] for got in seeds])} for name in seeds[0]
        }
        values[f"depth {label}"] = numbers(systems)
        for one in summaries(systems):
            gap = (one.difference, *one.interval)
            rows.append((int(label), one.name, one.mean, one.q25, one.q75, one.top50, gap, ABSENT))
            means.setdefault(one.name, []).append(interval(systems[one.name]["loss"]))
    columns = (
        "Layers of f_θ", "Metric", "Loss", "q25", "q75", f"Top-{TOP}", "Difference to full [95 %]",
        "Paper",
    )  # fmt: skip
    words = "Depth of f_θ, and parts of the metric of a trained model."
    note = _caption(desk, words).replace("first row of a set", "full metric")
    rules = _rules([len(rows) // len(labels)] * len(labels))
    table = Table(columns, tuple(rows), note, "tab:table3", rules=rules)
    x = np.array([int(label) for label in labels], np.float64)
    lines = []
    for name, triples in means.items():
        middle, low, high = np.array(triples).T
        lines.append(Series(name, x, middle, low=low, high=high))
    unit = desk.made[0].snapshot.run.unit
    figure = Figure(
        name="table3",
        panels=(Panel(Lines(tuple(lines), markers=True), "", "layers of f_θ", "mean loss"),),
        title="Parts of the metric, by depth of f_θ",
        caption=f"Mean loss ({unit}) with 95 % bootstrap intervals over examples. {_sets(desk)}.",
        provenance=made(desk),
        arrays={"depth": x, **{name: np.array(triples) for name, triples in means.items()}},
        column="double",
    )
    yield Outcome(values, table, {"table3": figure})


# ---------------------------------------------------------------- cost


def gflops(desk: Desk) -> Iterator[Progress | Outcome]:
    """Table 2: GFLOPs as the paper counts them, time and memory as measured here."""
    sizes: dict[str, Any] = {
        "attentions": tuple(scaling.TABLE2_SYSTEMS.values()),
        "seq_lens": tuple(scaling.TABLE2.values()), "d_models": (128,),
        "kind": "stack", "n_layers": 4, "repeats": 5 if desk.small else 25,
    }  # fmt: skip
    found = yield from _measured(desk, sizes)
    made_ = table2(found)
    note = f"{made_.caption} GFLOPs are by the paper's formula and are its own numbers."
    paper = {
        data: {name: scaling.table2_gflops(name, tokens) for name in scaling.TABLE2_SYSTEMS}
        for data, tokens in scaling.TABLE2.items()
    }
    yield Outcome(asdict(found), replace(made_, caption=note), paper={"GFLOPs": paper})


def times(desk: Desk) -> Iterator[Progress | Outcome]:
    """Table 8: what every mechanism takes, as measured here."""
    sizes: dict[str, Any] = {
        "attentions": scaling.PUBLISHED, "kind": "stack",
        **({"seq_lens": (64, 256), "d_models": (128,), "n_layers": 4, "repeats": 5} if desk.small
           else {"seq_lens": (256, 1024), "d_models": (512,), "n_layers": 10, "repeats": 25}),
    }  # fmt: skip
    found = yield from _measured(desk, sizes)
    table = scaling_table(found)
    rows = tuple((*row, ABSENT) for row in table.rows)
    table = replace(
        table, columns=(*table.columns, "Paper"), rows=rows, label="tab:table8",
        caption=f"{table.caption} Paper: {NOT_AT_HAND}",
    )  # fmt: skip
    yield Outcome(asdict(found), table, {"table8": scaling_figure(found, made(desk))})


def _measured(desk: Desk, sizes: Mapping[str, Any]) -> Steps[scaling.Scaling]:
    """A measurement by the clock, kept: the same command does not measure again."""
    device = str(pick_device(desk.device))
    words = {**sizes, "device": device}
    path = desk.folder / "evaluations" / "costs.json"
    if path.exists():
        stored = json.loads(path.read_text())
        if stored["sizes"] == json.loads(json.dumps(words)):
            costs = tuple(scaling.Cost(**_tuples(cost)) for cost in stored["found"].pop("costs"))
            return scaling.Scaling(costs=costs, **stored["found"])
    found: scaling.Scaling = yield from relayed(scaling.measure(**words))
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, json.dumps({"sizes": words, "found": asdict(found)}, indent=2) + "\n")
    return found


def _tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Undo what JSON does to tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}


def made(desk: Desk) -> Provenance:
    """Where the numbers of a figure about several runs come from."""
    from damcha import __version__

    return Provenance(
        run=", ".join(one.snapshot.run.name for one in desk.made),
        settings={"n": desk.n, "small": desk.small},
        version=__version__,
        command=desk.command,
    )
