"""Fonts of paper figures: Type 42, the same on every machine; see ``paper.py``."""

from __future__ import annotations

from functools import cache
from typing import Any

from matplotlib.font_manager import findfont, get_font
from matplotlib.ft2font import LoadFlags

from damcha.figures.style import LIGHT
from damcha.figures.words import STAND_INS

INCH = 72.0
"""Points in an inch."""

FAMILIES = ("STIXGeneral", "DejaVu Sans")
"""Times-like text, as most venues print, then rarer signs; both fonts ship in matplotlib."""

RC: dict[Any, Any] = {
    "font.family": [*FAMILIES, "serif"],
    "font.serif": list(FAMILIES),
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "text.color": LIGHT.text,
    "axes.labelcolor": LIGHT.text,
    "axes.edgecolor": LIGHT.muted,
    "xtick.color": LIGHT.muted,
    "ytick.color": LIGHT.muted,
    "xtick.labelcolor": LIGHT.text,
    "ytick.labelcolor": LIGHT.text,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "mathtext.fontset": "stix",
    "svg.fonttype": "none",
    "svg.hashsalt": "damcha",
    "axes.unicode_minus": True,
}


def text_width(text: str, size: float) -> float:
    """Return the width of a line of text in inches, from the fonts' own advances."""
    points = 0.0
    for sign in text:
        font = get_font(_font_file(sign) or findfont(FAMILIES[0]))
        font.set_size(size, INCH)
        points += font.load_char(ord(sign), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 65536
    return points / INCH


def plain(text: str) -> str:
    """Replace signs that no font here has: matplotlib would warn and draw an empty box."""
    text = text.translate(STAND_INS)
    return "".join(sign if _font_file(sign) else "\ufffd" for sign in text)


@cache
def _font_file(sign: str) -> str | None:
    """Return the first font of ``FAMILIES`` that has a sign."""
    for file in map(findfont, FAMILIES):
        if get_font(file).get_char_index(ord(sign)):
            return str(file)
    return None
