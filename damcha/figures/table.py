"""Tables as papers print them: booktabs LaTeX, CSV, Markdown.

>>> table = Table(("system", "loss"), (("full", 0.0629), ("zero", 0.0912)), "Ablations.")
>>> print(to_latex(table))
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from damcha.errors import InputError

Cell = str | int | float | tuple[float, float, float] | None
"""A word, a number, a number with its interval (centre, low, high), or nothing."""


@dataclass(frozen=True)
class Table:
    """Named columns, rows of cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    label: str = "tab:damcha"
    digits: int = 4
    """Decimals of numbers."""
    rules: tuple[int, ...] = ()
    """Rows below which a thin rule is drawn."""

    def __post_init__(self) -> None:
        for k, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InputError(
                    f"table: row {k} has {len(row)} cells for {len(self.columns)} columns"
                )


def to_latex(table: Table) -> str:
    """Return a table environment for the booktabs package; words are escaped."""
    numeric = [
        all(not isinstance(row[c], str) for row in table.rows) for c in range(len(table.columns))
    ]
    lines = [
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{escape(table.caption)}}}",
        rf"  \label{{{table.label}}}",
        rf"  \begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"    \toprule",
        f"    {' & '.join(escape(name) for name in table.columns)} \\\\",
        r"    \midrule",
    ]
    for k, row in enumerate(table.rows):
        lines.append(f"    {' & '.join(_latex(cell, table.digits) for cell in row)} \\\\")
        if k in table.rules:
            lines.append(r"    \midrule")
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def to_markdown(table: Table) -> str:
    """Return a Markdown table with its caption."""
    numeric = [
        all(not isinstance(row[c], str) for row in table.rows) for c in range(len(table.columns))
    ]
    lines = [
        "| " + " | ".join(_markdown(name, 0) for name in table.columns) + " |",
        "|" + "|".join(" ---: " if number else " --- " for number in numeric) + "|",
    ]
    lines += [
        "| " + " | ".join(_markdown(cell, table.digits) for cell in row) + " |"
        for row in table.rows
    ]
    return "\n".join(lines) + "\n" + (f"\n{table.caption}\n" if table.caption else "")


def to_csv(table: Table) -> str:
    """Return CSV with every digit; a number with an interval takes three columns."""
    wide = [any(isinstance(row[c], tuple) for row in table.rows) for c in range(len(table.columns))]
    names: list[str] = []
    for name, spread in zip(table.columns, wide, strict=True):
        names += [name, f"{name} low", f"{name} high"] if spread else [name]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in table.rows:
        cells: list[object] = []
        for cell, spread in zip(row, wide, strict=True):
            if isinstance(cell, tuple):
                cells += cell
            elif isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") and len(cell) > 1:
                cells.append(f"'{cell}")  # a spreadsheet would run it as a formula
            else:
                cells += [cell, *[""] * (2 * spread)]
        writer.writerow("" if cell is None else cell for cell in cells)
    return buffer.getvalue()


_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "−": "$-$", "×": r"$\times$", "≠": r"$\neq$", "±": r"$\pm$", "‖": r"$\|$", "θ": r"$\theta$",
    "Σ": r"$\Sigma$", "·": r"$\cdot$", "…": r"\dots{}", "–": "--", "→": r"$\to$", "°": r"$^\circ$",
    "∞": r"$\infty$", "ᵀ": r"$^\top$", "²": r"$^2$", "λ": r"$\lambda$", "√": r"$\surd$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def escape(text: str) -> str:
    """Escape what LaTeX would read as a command, and write signs that its fonts lack."""
    return "".join(_SPECIAL.get(c, c) for c in text)


def _digits(value: float, digits: int) -> str:
    return f"{value:.{digits}f}"


def _words(cell: Cell, digits: int) -> str:
    if cell is None:
        return ""
    if isinstance(cell, tuple):
        centre, low, high = (_digits(value, digits) for value in cell)
        return f"{centre} [{low}, {high}]"
    return _digits(cell, digits) if isinstance(cell, float) else str(cell)


def _latex(cell: Cell, digits: int) -> str:
    if isinstance(cell, str):
        return escape(cell)
    return _words(cell, digits).replace("-", "$-$")


def _markdown(cell: Cell, digits: int) -> str:
    text = " ".join(_words(cell, digits).split())
    return text.replace("|", "\\|").replace("-", "−") if not isinstance(cell, str) else (
        text.replace("\\", "\\\\").replace("|", "\\|")
    )  # fmt: skip
