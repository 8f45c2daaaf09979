"""What a figure is, before anybody draws it.

Figure ── panels in a grid, page size, caption, provenance, the exact arrays behind it
└── Panel ── one mark with its title, axis labels and ticks
    └── mark: Heatmap | Contour | Surface | Lines | Scatter | Bars | Intervals | Distributions |
              ImageGrid | Tokens | Sentence

Builders decide numbers, limits, order and wording here; ``screen.py`` and ``paper.py`` only
translate, so a screen figure and its export cannot disagree. Positions on a heatmap's axes count
cells: the centre of cell k is k, its edges are k - 0.5 and k + 0.5. Row 0 is drawn on top. All
texts are plain Unicode: neither HTML nor LaTeX is interpreted, whatever a user's label contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from damcha.errors import InputError

Array = npt.NDArray[Any]
Ticks = tuple[tuple[float, str], ...]
Colours = Literal["diverging", "sequential"]


@dataclass(frozen=True)
class Scale:
    """Numbers to colours: marks with equal scales share one colour bar."""

    limits: tuple[float, float]
    colours: Colours = "diverging"
    label: str = ""

    def __post_init__(self) -> None:
        low, high = self.limits
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise InputError(
                f"limits: a colour scale needs finite low < high, not {low} and {high}"
            )
        if self.colours == "diverging" and low != -high:
            raise InputError(
                f"limits: a diverging scale is symmetric about zero, not {low} to {high}"
            )


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A matrix of coloured cells; NaN cells are left blank."""

    values: Array
    """float32 [rows, columns]."""
    scale: Scale
    row_labels: tuple[str, ...]
    """What the pointer says about each row; unique."""
    column_labels: tuple[str, ...]
    row_lines: tuple[float, ...] = ()
    """Rules between cells, e.g. block borders at 7.5, 15.5, …"""
    column_lines: tuple[float, ...] = ()
    clickable: bool = False
    """On screen a click on a cell selects (row, column)."""
    write_values: bool = False
    """Write each number into its cell."""
    cell_aspect: float | None = 1.0
    """Height of a cell over its width; None fills the panel."""

    def __post_init__(self) -> None:
        shape = (len(self.row_labels), len(self.column_labels))
        if self.values.ndim != 2 or self.values.shape != shape:
            raise InputError(
                f"heatmap: values {self.values.shape} do not fit {shape[0]} row labels and "
                f"{shape[1]} column labels"
            )


@dataclass(frozen=True, eq=False)
class Contour:
    """A matrix as filled level lines; nothing is smoothed here."""

    values: Array
    """float32 [rows, columns], finite and not constant."""
    scale: Scale
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    row_lines: tuple[float, ...] = ()
    column_lines: tuple[float, ...] = ()
    n_levels: int = 12

    @property
    def levels(self) -> Array:
        """Values of the lines, evenly spaced over the scale, ends included."""
        return np.linspace(*self.scale.limits, self.n_levels + 1)


@dataclass(frozen=True, eq=False)
class Surface:
    """A matrix as a landscape in 3D, its height and its colour by the scale."""

    values: Array
    """float32 [rows, columns], at most 128 a side."""
    scale: Scale
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    azimuth: float = -60.0
    """Degrees from the column axis towards the row axis at which the camera stands."""
    elevation: float = 35.0
    """Degrees of the camera above the plane."""


@dataclass(frozen=True, eq=False)
class Series:
    """One named line or group of points."""

    name: str
    x: Array
    y: Array
    labels: tuple[str, ...] = ()
    """What the pointer says about each point, where x and y are not enough."""
    low: Array | None = None
    """Lower and upper edge of a band about a line."""
    high: Array | None = None
    values: Array | None = None
    """Of points: numbers that the scale of a Scatter colours."""


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines over a common x axis; NaN is a gap."""

    series: tuple[Series, ...]
    markers: bool = False
    log_y: bool = False


@dataclass(frozen=True, eq=False)
class Scatter:
    """Points: one colour and shape a series, or coloured by their values."""

    series: tuple[Series, ...]
    equal_axes: bool = False
    scale: Scale | None = None
    clickable: bool = False
    """On screen a click on a point selects its number, counted through all series."""


@dataclass(frozen=True, eq=False)
class Bars:
    """Horizontal bars, the first on top."""

    labels: tuple[str, ...]
    values: Array
    """float [n]."""


@dataclass(frozen=True, eq=False)
class Intervals:
    """Numbers with an interval each, one below the other."""

    labels: tuple[str, ...]
    centres: Array
    lows: Array
    highs: Array
    reference: float | None = None
    """A vertical line to compare with, e.g. no difference."""


@dataclass(frozen=True, eq=False)
class Distributions:
    """Samples of numbers as boxes: quartiles, the middle 90 % as whiskers, the mean as a point."""

    labels: tuple[str, ...]
    samples: tuple[Array, ...]
    """One array of finite numbers each."""

    def quantiles(self) -> Array:
        """5, 25, 50, 75 and 95 % quantile of each sample, [n, 5]."""
        return np.array([np.quantile(s, (0.05, 0.25, 0.5, 0.75, 0.95)) for s in self.samples])

    def means(self) -> Array:
        """Mean of each sample, [n]."""
        return np.array([np.mean(s) for s in self.samples])


@dataclass(frozen=True, eq=False)
class ImageGrid:
    """Pictures of one size, row by row."""

    images: tuple[Array, ...]
    """uint8, each [height, width] or [height, width, 1 or 3]."""
    n_columns: int = 1


@dataclass(frozen=True, eq=False)
class Tokens:
    """Text tokens in reading order, each on the colour of its value; NaN is left blank."""

    labels: tuple[str, ...]
    values: Array
    """float32 [n]."""
    scale: Scale
    n_columns: int = 24


@dataclass(frozen=True)
class Sentence:
    """A sentence where a chart would say nothing (a constant, a single cell, NaN)."""

    text: str


Mark = (
    Heatmap
    | Contour
    | Surface
    | Lines
    | Scatter
    | Bars
    | Intervals
    | Distributions
    | ImageGrid
    | Tokens
    | Sentence
)


@dataclass(frozen=True, eq=False)
class Panel:
    """One mark with its words."""

    mark: Mark
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_ticks: Ticks | None = None
    """(position, text) pairs; None leaves them to the renderer, () draws none."""
    y_ticks: Ticks | None = None
    row_title: str = ""
    """Names a row of small panels, at its left; on the first panel of the row."""


@dataclass(frozen=True)
class Provenance:
    """Where a figure's numbers come from, enough to make it again."""

    run: str = ""
    epoch: int | None = None
    weights_digest: str = ""
    input_digest: str = ""
    input_name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    command: str = ""
    """The shell command that regenerates the figure."""


UNKNOWN = Provenance()
"""The provenance of numbers that come from nowhere in particular."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Figure:
    """Panels in a grid, row by row, and all that an export says about them."""

    name: str
    """A word for file names, e.g. ``metric-full``."""
    panels: tuple[Panel, ...]
    n_columns: int = 1
    title: str = ""
    caption: str = ""
    provenance: Provenance = UNKNOWN
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """Exact numbers that the sidecar carries beside the drawn ones, e.g. an unpooled metric."""
    venue: str = "icml"
    column: Literal["single", "double"] = "single"

    def sized(self, venue: str, column: Literal["single", "double"] = "single") -> Figure:
        """Return the figure for another page."""
        return replace(self, venue=venue, column=column)


def scales(figure: Figure) -> tuple[Scale, ...]:
    """Return the figure's distinct colour scales, in the order of its panels."""
    return tuple(dict.fromkeys(scale for panel in figure.panels for scale in _scale_of(panel)))


def _scale_of(panel: Panel) -> Iterator[Scale]:
    scale = getattr(panel.mark, "scale", None)
    if scale is not None:
        yield scale


def mosaic(grid: ImageGrid, gap: int = 1) -> Array:
    """Return the pictures of a grid as one RGBA picture, transparent where there is none.

    Shapes: n pictures [H, W(, C)] → uint8 [rows·H + gaps, columns·W + gaps, 4].
    """
    height, width = grid.images[0].shape[:2]
    columns = min(grid.n_columns, len(grid.images))
    rows = -(-len(grid.images) // columns)
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, 4)
    out = np.zeros(shape, np.uint8)
    for k, image in enumerate(grid.images):
        top, left = (k // columns) * (height + gap), (k % columns) * (width + gap)
        tile = out[top : top + height, left : left + width]
        tile[..., :3] = image if image.ndim == 3 else image[..., None]
        tile[..., 3] = 255
    return out


def token_cells(tokens: Tokens) -> tuple[Array, list[list[str]]]:
    """Lay tokens out in rows: values [rows, columns] (NaN where none) and their texts."""
    columns = min(tokens.n_columns, len(tokens.labels))
    rows = -(-len(tokens.labels) // columns)
    values = np.full(rows * columns, np.nan, np.float32)
    values[: len(tokens.values)] = tokens.values
    labels = [*tokens.labels, *[""] * (rows * columns - len(tokens.labels))]
    texts = [labels[k * columns : (k + 1) * columns] for k in range(rows)]
    return values.reshape(rows, columns), texts
