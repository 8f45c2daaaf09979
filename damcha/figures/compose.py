"""Several figures on one page, with (a), (b), … as in papers."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

from damcha.errors import InputError
from damcha.figures.spec import Array, Figure, Provenance


def compose(figures: Sequence[Figure], n_columns: int, title: str = "") -> Figure:
    """Put the panels of several figures into one grid; the first panel of each is lettered.

    Scales, and with them colour bars, stay those of each figure; captions are joined by letters.

    Raises
    ------
    InputError
        If there are no figures, or more than there are letters.
    """
    if not 1 <= len(figures) <= len(string.ascii_lowercase):
        raise InputError(f"compose: {len(figures)} figures; take 1 to 26")
    if n_columns < 1:
        raise InputError(f"compose: {n_columns} columns; take 1 or more")
    panels, captions = [], []
    arrays: dict[str, Array] = {}
    for letter, figure in zip(string.ascii_lowercase, figures, strict=False):
        first, *others = figure.panels
        words = first.title or figure.title
        panels += [replace(first, title=f"({letter}) {words}"), *others]
        captions.append(f"({letter}) {figure.caption}")
        arrays |= {f"{letter}.{name}": array for name, array in figure.arrays.items()}
    parts = [figure.provenance for figure in figures]
    return Figure(
        name="composed",
        panels=tuple(panels),
        n_columns=n_columns,
        title=title,
        caption=" ".join(captions),
        provenance=Provenance(
            run=", ".join(dict.fromkeys(part.run for part in parts)),
            input_name=", ".join(dict.fromkeys(part.input_name for part in parts)),
            settings={"parts": [part.command for part in parts]},
            version=parts[0].version,
        ),
        arrays=arrays,
        venue=figures[0].venue,
        column="double",
    )
