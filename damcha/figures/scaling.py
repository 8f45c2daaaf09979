"""What mechanisms cost: ratios to MHA over length or width, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from damcha.analysis.scaling import TABLE2, TABLE2_SYSTEMS, Cost, Scaling, table2_gflops
from damcha.figures.spec import UNKNOWN, Figure, Intervals, Lines, Panel, Provenance, Series
from damcha.figures.table import Cell, Table

Over = Literal["seq_len", "d_model"]
AXES: dict[Over, str] = {"seq_len": "tokens L", "d_model": "width d"}


def scaling_figure(
    found: Scaling, provenance: Provenance = UNKNOWN, *, over: Over | None = None
) -> Figure:
    """Draw each mechanism's cost as a multiple of MHA's.

    Over lengths or widths (at the largest of the other), lines: what the formulas say, and what was
    measured, with quartiles. Of a single case, intervals.
    """
    if over is None:
        over = "seq_len" if len({c.seq_len for c in found.costs}) > 1 else "d_model"
    other: Over = "d_model" if over == "seq_len" else "seq_len"
    largest = max(getattr(cost, other) for cost in found.costs)
    costs = [cost for cost in found.costs if getattr(cost, other) == largest]
    places = sorted({getattr(cost, over) for cost in costs})
    title = f"Cost of a {found.kind}, as a multiple of MHA's"
    at = f"{'d' if other == 'd_model' else 'L'} = {largest}"
    caption = (
        f"{title}, at {at}, {found.n_heads} heads, batch {found.batch}"
        + (f", {found.n_layers} layers" if found.kind == "stack" else "")
        + f"; medians of {found.repeats} rounds in which all take turns, bands are quartiles "
        f"({found.device}, {found.threads} thread{'s' * (found.threads > 1)}, torch {found.torch})."
    )
    panels = _lines(costs, over, places) if len(places) > 1 else _intervals(costs)
    return Figure(
        name="efficiency",
        panels=panels,
        n_columns=2,
        title=title,
        caption=caption,
        provenance=provenance,
        arrays={
            "seq_len": np.array([cost.seq_len for cost in costs]),
            "d_model": np.array([cost.d_model for cost in costs]),
            "formula": np.array([cost.formula for cost in costs]),
            "counted": np.array([cost.counted for cost in costs]),
            "forward": np.array([cost.forward for cost in costs]),
            "training": np.array([cost.training for cost in costs]),
            "forward_ratio": np.array([cost.forward_ratio for cost in costs]),
            "training_ratio": np.array([cost.training_ratio for cost in costs]),
            "memory": np.array([cost.memory for cost in costs]),
            "training_memory": np.array([cost.training_memory for cost in costs]),
            "attention": np.array([cost.attention for cost in costs]),
        },
        column="double",
    )


def _lines(costs: Sequence[Cost], over: Over, places: Sequence[int]) -> tuple[Panel, ...]:
    names = list(dict.fromkeys(cost.attention for cost in costs))
    by_case = {(cost.attention, getattr(cost, over)): cost for cost in costs}
    x = np.array(places, np.float64)
    baseline = [by_case["mha", place] for place in places]
    formula: list[Series] = []
    memory: list[Series] = []
    forward: list[Series] = []
    training: list[Series] = []
    for name in names:
        own = [by_case[name, place] for place in places]
        pairs = list(zip(own, baseline, strict=True))
        formula.append(Series(name, x, np.array([a.formula / b.formula for a, b in pairs])))
        memory.append(
            Series(name, x, np.array([a.training_memory / b.training_memory for a, b in pairs]))
        )
        for lines, field in ((forward, "forward_ratio"), (training, "training_ratio")):
            low, middle, high = np.array([getattr(cost, field) for cost in own]).T
            lines.append(Series(name, x, middle, low=low, high=high))
    drawn = {
        "multiply-adds, by formula": formula,
        "peak memory, forward with gradients": memory,
        "time, forward": forward,
        "time, forward and backward": training,
    }
    return tuple(
        Panel(Lines(tuple(lines), markers=True, log_y=True), title, AXES[over], "× MHA")
        for title, lines in drawn.items()
    )


def _intervals(costs: Sequence[Cost]) -> tuple[Panel, ...]:
    panels = []
    for title, field in (("time, forward", "forward_ratio"),
                         ("time, forward and backward", "training_ratio")):  # fmt: skip
        low, middle, high = np.array([getattr(cost, field) for cost in costs]).T
        labels = tuple(cost.attention for cost in costs)
        panels.append(Panel(Intervals(labels, middle, low, high, 1.0), title, "× MHA"))
    return tuple(panels)


def scaling_table(found: Scaling) -> Table:
    """Every case: parameters, multiply-adds, times with ratios, memory, throughput."""
    rows: list[tuple[Cell, ...]] = [
        (
            cost.attention, cost.seq_len, cost.d_model, cost.parameters,
            round(cost.formula / 1e6, 3), round(cost.forward[1] * 1e3, 2),
            _ratio(cost.forward_ratio), round(cost.training[1] * 1e3, 2),
            _ratio(cost.training_ratio), round(cost.memory, 2), round(cost.training_memory, 2),
            int(cost.tokens_per_second),
        )
        for cost in found.costs
    ]  # fmt: skip
    cells = {(cost.d_model, cost.seq_len): k for k, cost in enumerate(found.costs)}
    what = "Attention layers" if found.kind == "layer" else f"Stacks of {found.n_layers} blocks"
    return Table(
        (
            "Attention", "L", "d", "Parameters", "M multiply-adds", "Forward ms", "× MHA",
            "Forward+backward ms", "× MHA ", "Peak MiB", "Peak MiB, gradients", "Tokens/s",
        ),
        tuple(rows),
        f"{what}, {found.n_heads} heads, batch {found.batch}: medians of {found.repeats} "
        f"interleaved rounds, ratios with quartiles ({found.device}, {found.threads} thread"
        f"{'s' * (found.threads > 1)}, torch {found.torch}). Multiply-adds: one sequence, by "
        "formula.",
        "tab:efficiency",
        digits=3,
        rules=tuple(sorted(cells.values()))[:-1],
    )  # fmt: skip


def _ratio(quartiles: tuple[float, float, float]) -> tuple[float, float, float]:
    low, middle, high = quartiles
    return (round(middle, 3), round(low, 3), round(high, 3))


def table2(found: Scaling | None = None) -> Table:
    """The paper's Table 2: GFLOPs of its systems, and what they take here where it was measured."""
    names = list(TABLE2_SYSTEMS)
    measured = {} if found is None else {(c.attention, c.seq_len): c for c in found.costs}
    columns = ["Data", "T", "System", "GFLOPs"]
    columns += ["ms", "× MHA", "Peak MiB"] * bool(measured)
    rows: list[tuple[Cell, ...]] = []
    for data, tokens in TABLE2.items():
        for name in names:
            row: list[Cell] = [data, tokens, name, round(table2_gflops(name, tokens), 4)]
            if measured:
                cost = measured[TABLE2_SYSTEMS[name], tokens]
                row += [round(cost.forward[1] * 1e3, 3), _ratio(cost.forward_ratio),
                        round(cost.memory, 3)]  # fmt: skip
            rows.append(tuple(row))
    caption = (
        "GFLOPs as the paper counts them, 8 · multiply-adds / 10⁹ (d = 128, 8 heads, FF 256, "
        "4 layers), of the authors' baselines."
    )
    if found is not None:
        caption += (
            f" Times and memory: measured here, batch {found.batch}, forward, {found.device}, "
            f"{found.threads} thread{'s' * (found.threads > 1)}; the paper's own were not at hand."
        )
    every = len(names)
    rules = tuple(range(every - 1, len(rows) - 1, every))
    return Table(tuple(columns), tuple(rows), caption, "tab:table2", digits=4, rules=rules)
