"""Page sizes, colours and number texts that both renderers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from damcha.errors import ConfigError, InputError
from damcha.figures.spec import Array, Colours, Scale, Ticks

# (single, double) column widths in inches; a venue with one column has the same number twice.
# A test compares them with tueplots, which has all but ACL and IEEE (from their style files).
VENUES: dict[str, tuple[float, float]] = {
    "neurips": (5.5, 5.5),
    "icml": (3.25, 6.75),
    "iclr": (5.5, 5.5),
    "colm": (5.5, 5.5),
    "cvpr": (3.25, 6.875),
    "aaai": (3.3, 6.975),
    "eccv": (4.8, 4.8),
    "aistats": (3.25, 6.75),
    "uai": (3.25, 6.75),
    "jmlr": (6.0, 6.0),
    "tmlr": (6.5, 6.5),
    "acl": (3.03, 6.3),
    "ieee": (3.5, 7.16),
    "plain": (4.0, 6.5),
}

# Nine stops a ramp, evenly spaced in OKLab lightness and kept inside sRGB. Blue against orange-red
# is told apart under every common colour blindness; both arms have the same lightness at the same
# distance from zero. On a dark page zero is dark and the ends are light.
_BLUE = "#ffffff #d0e9ff #a2d2ff #76b9fc #5c9fe9 #4a86cf #3d6db1 #34578f #2b426b".split()
_RED = "#ffffff #ffdeca #ffba95 #fa9666 #e6784d #cc5e3e #ae4936 #8d3930 #6a2d2b".split()
_BLUE_DARK = "#1b1b1b #1a2f4c #184575 #135d99 #1677b7 #2c93cf #4daee3 #75c9f2 #a1e2ff".split()
_RED_DARK = "#1b1b1b #472316 #6c3010 #8d420a #a95912 #c1752b #d6934d #e7b273 #f6d19f".split()
_SEA = "#ffffff #b7edf0 #7bd4e5 #4ab7d9 #2998c8 #2278b1 #265993 #263d70 #1f254b".split()
_SEA_DARK = "#1b1b1b #1d314c #014d71 #006c82 #038b91 #0fac9a #6ac79c #a9dea7 #e0f4c1".split()

_STOPS: dict[tuple[Colours, bool], list[str]] = {
    ("diverging", False): [*reversed(_BLUE[1:]), *_RED],
    ("diverging", True): [*reversed(_BLUE_DARK[1:]), *_RED_DARK],
    ("sequential", False): _SEA,
    ("sequential", True): _SEA_DARK,
}

CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Colours of lines and groups: Okabe and Ito's, readable on white and on dark."""


@dataclass(frozen=True)
class Theme:
    """Colours of everything that is not data."""

    text: str
    muted: str
    rule: str
    """Block borders over a heatmap."""
    grid: str
    blank: str
    """Behind cells without a value."""


LIGHT = Theme(text="#1f2328", muted="#59636e", rule="#30363d", grid="#e3e6ea", blank="#eceef1")
DARK = Theme(text="#e6edf3", muted="#9aa4af", rule="#aeb8c2", grid="#30363d", blank="#30363d")


def stops(colours: Colours, dark: bool = False) -> list[str]:
    """Return the evenly spaced colours of a map, lowest value first."""
    return _STOPS[colours, dark]


def page_width(venue: str, column: Literal["single", "double"]) -> float:
    """Return a venue's column width in inches."""
    if venue not in VENUES:
        raise ConfigError(f"venue: '{venue}' is not known; choose one of {', '.join(VENUES)}")
    if column not in ("single", "double"):
        raise ConfigError(f"column: '{column}' is not one of single, double")
    return VENUES[venue][column == "double"]


def symmetric_scale(*arrays: Array, label: str = "") -> Scale:
    """Return the diverging scale -v … v, v the largest absolute value of all arrays.

    Raises InputError where all values are zero: there is nothing to colour.
    """
    largest = max(float(np.nanmax(np.abs(array))) for array in arrays)
    if largest == 0:
        raise InputError("limits: every value is 0, so there is no scale to centre at zero")
    return Scale((-largest, largest), "diverging", label)


def number(value: float) -> str:
    """Return a number as figures and sentences write it: 4 significant digits, a real minus."""
    return f"{value:.4g}".replace("-", "−")


def thin(ticks: Ticks, room: int) -> Ticks:
    """Keep every k-th tick so that at most ``room`` are left; the first always stays."""
    return ticks[:: max(1, -(-len(ticks) // max(1, room)))]


def luminance(colour: str) -> float:
    """Return the WCAG relative luminance of #rrggbb, 0 (black) to 1 (white)."""
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def ink_on(scale: Scale, value: float, dark: bool = False) -> str:
    """Return black or white, whichever reads better on a value's colour."""
    colours: Sequence[str] = stops(scale.colours, dark)
    if not np.isfinite(value):
        return (DARK if dark else LIGHT).text
    low, high = scale.limits
    place = np.clip((value - low) / (high - low), 0, 1) * (len(colours) - 1)
    # 0.18 is where black and white give equal WCAG contrast.
    return "#ffffff" if luminance(colours[round(float(place))]) < 0.18 else "#1f2328"
