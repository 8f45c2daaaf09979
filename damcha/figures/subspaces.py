"""Cross-subspace tasks (Figures 12 and 13): values and advantages by entanglement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from damcha.analysis.study import Estimate, estimate
from damcha.analysis.subspaces import SYSTEMS, Cell, Kind, Size, parameters
from damcha.figures.spec import UNKNOWN, Figure, Lines, Panel, Provenance, Series
from damcha.figures.style import number
from damcha.figures.table import Table

VALUES: dict[Kind, str] = {"regression": "mean squared error", "classification": "share right"}


def advantage(kind: Kind, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much less wrong than MHA, [systems, seeds]: 1 − error / MHA's error, paired by seed.

    The error is the mean squared error, or the share wrong; both have a floor above 0.
    """
    return _saved(kind, values, values[0])


def _saved(kind: Kind, values: NDArray[np.float64], to: NDArray[np.float64]) -> NDArray[np.float64]:
    if kind == "classification":
        values, to = 1 - values, 1 - to
    return 1 - values / to


def subspaces_figure(
    kind: Kind, size: Size, cells: Sequence[Cell], provenance: Provenance = UNKNOWN
) -> Figure:
    """Draw the value and the relative advantage over MHA by entanglement, a row for each width."""
    panels: list[Panel] = []
    arrays: dict[str, NDArray[np.float64]] = {}
    for width in size.widths:
        row = [cell for cell in cells if cell.width == width]
        x = np.array([cell.level for cell in row])
        values = np.array([[estimate(v) for v in cell.values] for cell in row])  # [levels, s, 3]
        gains = np.array([[estimate(v) for v in advantage(kind, cell.values)] for cell in row])
        best = np.array([cell.best.mean() for cell in row])
        room = np.array([_saved(kind, cell.best, cell.values[0]).mean() for cell in row])
        lines = [_series(name, x, values[:, k]) for k, name in enumerate(SYSTEMS)]
        lines.append(Series("Bayes-optimal", x, best))
        # The same lines in both, MHA's zero too: so a system has one look.
        saved = [_series(name, x, gains[:, k]) for k, name in enumerate(SYSTEMS)]
        saved.append(Series("Bayes-optimal", x, room))
        title = f"width {width}"
        panels += [
            Panel(Lines(tuple(lines), markers=True), title, "entanglement", VALUES[kind]),
            Panel(Lines(tuple(saved), markers=True), title, "entanglement", "advantage over MHA"),
        ]
        arrays |= {f"value-{width}": values, f"advantage-{width}": gains}
        arrays |= {f"best-{width}": best, f"best-advantage-{width}": room}
    caption = (
        f"{kind.capitalize()} whose target couples head subspaces: {size.n_heads} heads of "
        f"{size.d_model // size.n_heads} channels, {size.seq_len} tokens, one attention layer, "
        f"{size.steps} steps, {size.seeds} seeds. Left: {VALUES[kind]}. Right: the share of MHA's "
        f"error that a system saves. Bands: 95 %, Student's t over seeds. "
        f"{' '.join(outcome(kind, cells))}"
    )
    return Figure(
        name="subspaces",
        panels=tuple(panels),
        n_columns=2,
        title=f"Cross-subspace tasks: {kind}",
        caption=caption,
        provenance=provenance,
        arrays={
            **arrays,
            "level": np.array(size.levels),
            "systems": np.array(list(SYSTEMS)),
        },
        column="double",
    )


def subspaces_table(
    kind: Kind, size: Size, cells: Sequence[Cell], label: str = "tab:subspaces"
) -> Table:
    """Tell every value with its interval, and the advantage over MHA."""
    weights = parameters(size)
    rows = []
    for cell in cells:
        for name, value, gain in zip(
            SYSTEMS, cell.values, advantage(kind, cell.values), strict=True
        ):
            rows.append((
                cell.width, cell.level, name, weights[name], _cell(estimate(value)),
                float(cell.best.mean()), _cell(estimate(gain)),
            ))  # fmt: skip
    n = len(SYSTEMS)
    columns = (
        "Width", "Entanglement", "System", "Weights", f"{VALUES[kind].capitalize()} [95 %]",
        "Bayes-optimal", "Advantage over MHA [95 %]",
    )  # fmt: skip
    note = (
        f"Cross-subspace tasks, {kind}, {size.seeds} seeds; intervals: Student's t over seeds. "
        f"Advantage: the share of MHA's error that is saved. {' '.join(outcome(kind, cells))}"
    )
    rules = tuple(range(n - 1, len(rows) - 1, n))
    return Table(columns, tuple(rows), note, label, rules=rules)


def outcome(kind: Kind, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Say what came out where everything lies between heads, and where nothing does."""
    said = []
    for level in sorted({min(c.level for c in cells), max(c.level for c in cells)}):
        own = [cell for cell in cells if cell.level == level]
        words = []
        for k, name in enumerate(SYSTEMS):
            if k:
                low, mean, high = estimate(
                    np.mean([advantage(kind, cell.values)[k] for cell in own], axis=0)
                )
                found = "ahead" if low > 0 else "behind" if high < 0 else "no difference shown"
                words.append(f"{name} {number(mean)} [{number(low)}, {number(high)}] ({found})")
        said.append(
            f"At entanglement {level:g}, over widths, the advantage over MHA is: "
            f"{'; '.join(words)}."
        )
    return tuple(said)


def _series(name: str, x: NDArray[np.float64], found: NDArray[np.float64]) -> Series:
    low, mean, high = found.T
    return Series(name, x, mean, low=low, high=high)


def _cell(found: Estimate) -> tuple[float, float, float]:
    low, mean, high = found
    return mean, low, high
