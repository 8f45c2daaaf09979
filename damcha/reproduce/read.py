"""Results that lie in a folder, read without trust: bounded, nothing followed or run."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from damcha.checkpoint.files import read_text, regular_file
from damcha.errors import CheckpointError, DamchaError
from damcha.figures.table import Table
from damcha.reproduce.write import FORMAT

MAX_FACTS_BYTES = 16_000_000
MAX_CARD_BYTES = 1_000_000
MAX_FIGURE_BYTES = 20_000_000
MAX_PIXELS = 40_000_000
RESULTS = "results.json"


@dataclass(frozen=True, eq=False)
class Result:
    """An experiment that was done."""

    path: Path
    name: str
    title: str
    small: bool
    date: str
    command: str
    table: Table | None
    card: str
    figures: tuple[str, ...]
    """Names without suffix; NAME.png and NAME.pdf lie in the folder."""

    def picture(self, name: str) -> bytes:
        """Return a figure as the bytes of a PNG.

        Raises
        ------
        CheckpointError
            If it is missing, too large, or no PNG.
        """
        content = self.file(f"{name}.png")
        try:
            with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
                width, height = image.size  # read before anything is decoded
        except (OSError, ValueError, Image.DecompressionBombError):
            raise CheckpointError(f"{name}.png is not a PNG; draw the figure again") from None
        if width * height > MAX_PIXELS:
            raise CheckpointError(
                f"{name}.png has {width}×{height} pixels, more than the {MAX_PIXELS:,} shown"
            )
        return content

    def file(self, name: str) -> bytes:
        """Return the bytes of a file of the folder, e.g. "table.tex"."""
        return regular_file(self.path / name, MAX_FIGURE_BYTES, self.path).read_bytes()


def open_result(path: str | Path) -> Result:
    """Read the folder of an experiment.

    Raises
    ------
    CheckpointError
        If results.json is missing or not one of ours.
    """
    path = Path(path)
    text = read_text(path / RESULTS, MAX_FACTS_BYTES, path)
    try:
        facts: dict[str, Any] = json.loads(text)
        if (facts["format"], facts["format_version"]) != (FORMAT, 1):
            raise ValueError(f"format {str(facts['format'])[:40]!r}")
        table = None if facts["table"] is None else _table(facts["table"])
        names = [str(facts[key]) for key in ("name", "title", "date", "command")]
        figures = tuple(str(name) for name in facts["figures"])
        if any(Path(name).name != name for name in figures):
            raise ValueError("a figure outside the folder")
        small = bool(facts["small"])
    except (ValueError, KeyError, TypeError, RecursionError, DamchaError) as error:
        raise CheckpointError(
            f"{RESULTS} is not one that `damcha reproduce` wrote ({type(error).__name__}: "
            f"{str(error)[:80]}); reproduce it again"
        ) from None
    card = ""
    if (path / "README.md").exists():
        card = read_text(path / "README.md", MAX_CARD_BYTES, path)
    name, title, date, command = names
    return Result(path, name, title, small, date, command, table, card, figures)


def _table(stored: dict[str, Any]) -> Table:
    def cell(value: Any) -> Any:
        if isinstance(value, list):
            centre, low, high = (float(number) for number in value)
            return centre, low, high
        if value is not None and not isinstance(value, str | int | float):
            raise TypeError(f"a cell of type {type(value).__name__}")
        return value

    rows = tuple(tuple(cell(value) for value in row) for row in stored["rows"])
    columns = tuple(str(name) for name in stored["columns"])
    return Table(columns, rows, str(stored["caption"]), digits=min(int(stored["digits"]), 12))


def list_results(
    *folders: str | Path,
) -> tuple[list[Result], list[tuple[str, str]]]:
    """Results in folders, by name; and those that cannot be opened, with the reason."""
    good, bad = [], []
    for folder in map(Path, folders):
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if not (path / RESULTS).exists():  # not yet finished, or something else
                continue
            try:
                good.append(open_result(path))
            except CheckpointError as error:
                bad.append((path.name, str(error)))
    return sorted(good, key=lambda one: _order(one.name)), bad


def _order(name: str) -> tuple[bool, int, str]:
    """Tables before figures, each by number."""
    digits = "".join(c for c in name if c.isdecimal())[:6]
    return (not name.startswith("table"), int(digits or 0), name)
