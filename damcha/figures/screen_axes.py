"""Axes, sizes and escaping of screen figures; see ``screen.py``."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from damcha.figures.spec import (
    Bars,
    Contour,
    Distributions,
    Heatmap,
    ImageGrid,
    Intervals,
    Lines,
    Mark,
    Panel,
    Scale,
    Scatter,
    Sentence,
    Surface,
    Ticks,
    Tokens,
    mosaic,
    token_cells,
)
from damcha.figures.style import Theme, stops, thin
from damcha.figures.words import STAND_INS


@dataclass(frozen=True)
class Place:
    """Where a panel goes: axis names ("", "2", …), size in pixels, and the surroundings."""

    axis: str
    width: float
    height: float
    theme: Theme
    dark: bool
    coloraxis: str | None


def axes_of(panel: Panel, place: Place) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both axes of a panel, without their domains."""
    mark, theme = panel.mark, place.theme
    common = {"zeroline": False, "color": theme.text, "tickfont": {"size": 12}}
    x: dict[str, Any] = common | {"title": {"text": safe(panel.x_label), "standoff": 8}}
    y: dict[str, Any] = common | {"title": {"text": safe(panel.y_label), "standoff": 8}}
    if isinstance(mark, Sentence):
        return {"visible": False, "range": [0, 1]}, {"visible": False, "range": [0, 1]}
    if isinstance(mark, Heatmap | Contour | Tokens | ImageGrid):
        n_rows, n_columns = _cells(mark)
        frame = {"showgrid": False, "constrain": "domain"}
        if isinstance(mark, Heatmap):
            frame |= {"type": "category", "showline": True, "mirror": True}
            frame |= {"linecolor": theme.muted, "linewidth": 1}
        x |= frame | {"range": [-0.5, n_columns - 0.5]}
        # Where a page is narrower than planned, the room that is left stays below.
        y |= frame | {"range": [n_rows - 0.5, -0.5], "constraintoward": "top"}
        if _aspect(mark):
            y |= {"scaleanchor": f"x{place.axis}", "scaleratio": _aspect(mark)}
    else:
        x |= {"gridcolor": theme.grid, "showline": True, "linecolor": theme.muted}
        y |= {"gridcolor": theme.grid}
        if isinstance(mark, Lines) and mark.log_y:
            ends = [end(line.y) for line in mark.series for end in (np.nanmin, np.nanmax)]
            wide = max(ends) > 10 * min(ends)
            y |= {"type": "log", "exponentformat": "power", "dtick": 1 if wide else "D2"}
        if isinstance(mark, Scatter) and mark.equal_axes:
            x |= {"zeroline": True, "zerolinecolor": theme.muted, "zerolinewidth": 1}
            y |= {"zeroline": True, "zerolinecolor": theme.muted, "zerolinewidth": 1}
            y |= {"scaleanchor": f"x{place.axis}", "scaleratio": 1}
        if isinstance(mark, Intervals | Distributions):
            y |= {"showgrid": False, "range": [len(mark.labels) - 0.5, -0.5]}
            y |= _ticks(tuple((float(k), label) for k, label in enumerate(mark.labels)), 999)
        if isinstance(mark, Bars):
            x |= {"range": [0, float(mark.values.max()) * 1.15 or 1.0]}
            y |= {"showgrid": False, "range": [len(mark.labels) - 0.5, -0.5]}
            y |= _ticks(tuple((float(k), label) for k, label in enumerate(mark.labels)), 999)
    # At a tick plotly's pointer would say the tick's short text in place of the cell's name; it
    # compares to 1/10,000 of the axis.
    aside = max(mark.values.shape) / 5000 if isinstance(mark, Heatmap) else 0.0
    if panel.x_ticks is not None:
        longest = max((len(text) for _, text in panel.x_ticks), default=1)
        x |= _ticks(panel.x_ticks, int(place.width / (10 + 8 * longest)), aside)
        x |= {"tickangle": 0}
    if panel.y_ticks is not None:
        y |= _ticks(panel.y_ticks, int(place.height / 16), aside)
    return x, y


def _ticks(ticks: Ticks, room: int, aside: float = 0.0) -> dict[str, Any]:
    kept = thin(ticks, room)
    values, texts = [at + aside for at, _ in kept], [safe(text) for _, text in kept]
    return {"tickmode": "array", "tickvals": values, "ticktext": texts, "ticks": ""}


def coloraxis(scale: Scale, k: int, ticks: int, dark: bool, theme: Theme) -> dict[str, Any]:
    """Return the k-th shared colour axis, its limits exactly those of the scale."""
    colours = stops(scale.colours, dark)
    places = np.linspace(0, 1, len(colours)).tolist()
    return {
        "cmin": scale.limits[0],
        "cmax": scale.limits[1],
        "colorscale": [list(pair) for pair in zip(places, colours, strict=True)],
        "colorbar": {
            **{"thickness": 12, "len": 1, "y": 0.5, "x": 1 + 0.15 * k, "xpad": 12, "ypad": 0},
            **{"outlinewidth": 1, "outlinecolor": theme.muted, "nticks": ticks},
            "tickfont": {"size": 12, "color": theme.text},
            "exponentformat": "power",
        },
    }


def scene_of(panel: Panel, mark: Surface, theme: Theme) -> dict[str, Any]:
    """Return the 3D scene of a surface: camera, heights and words."""
    azimuth, elevation = np.radians([mark.azimuth, mark.elevation])
    distance = 1.4
    eye = {
        "x": distance * float(np.cos(elevation) * np.cos(azimuth)),
        "y": distance * float(np.cos(elevation) * np.sin(azimuth)),
        "z": distance * float(np.sin(elevation)),
    }
    axis: dict[str, Any] = {"color": theme.text, "gridcolor": theme.grid, "zeroline": False}
    axis |= {"tickfont": {"size": 10}, "showbackground": False}
    x, y = (
        axis | {"title": {"text": safe(panel.x_label)}},
        axis
        | {
            "title": {"text": safe(panel.y_label)},
            "autorange": "reversed",
        },
    )
    for along, ticks in ((x, panel.x_ticks), (y, panel.y_ticks)):
        if ticks is not None:
            along |= _ticks(ticks, 8)
    z = axis | {"range": list(mark.scale.limits), "title": {"text": ""}}
    return {
        **{"xaxis": x, "yaxis": y, "zaxis": z},
        "camera": {
            "eye": eye,
            "up": {"x": 0, "y": 0, "z": 1},
            "projection": {"type": "orthographic"},
        },
        "dragmode": "turntable",  # not the zoom of the flat panels
        "aspectmode": "manual",
        "aspectratio": {"x": 1, "y": 1, "z": 0.55},
    }


def _cells(mark: Heatmap | Contour | Tokens | ImageGrid) -> tuple[int, int]:
    if isinstance(mark, Heatmap | Contour):
        drawn = mark.values
    elif isinstance(mark, Tokens):
        drawn = token_cells(mark)[0]
    else:
        drawn = mosaic(mark)
    return drawn.shape[0], drawn.shape[1]


def _aspect(mark: Mark) -> float | None:
    """Return a cell's height over its width, or None where the panel's shape decides."""
    if isinstance(mark, Heatmap):
        return mark.cell_aspect
    return 1.0 if isinstance(mark, ImageGrid | Contour) else None


def height(mark: Mark, width: float) -> float:
    """Return the height in pixels of a panel that is so wide."""
    if isinstance(mark, Heatmap | Contour | ImageGrid) and (cell := _aspect(mark)):
        rows, columns = _cells(mark)
        return float(min(max(width * cell * rows / columns, 40), 640))
    if isinstance(mark, Tokens):
        return 30.0 * _cells(mark)[0]
    if isinstance(mark, Bars | Intervals | Distributions):
        return 26.0 * len(mark.labels) + 10
    if isinstance(mark, Surface):
        return float(min(width * 0.9, 560))
    if isinstance(mark, Sentence):
        return 110
    return width if isinstance(mark, Scatter) else float(np.clip(width * 0.62, 220, 360))


def labelled(panels: Sequence[Panel]) -> bool:
    """Say whether any axis has a label."""
    return any(panel.x_label or panel.y_label for panel in panels)


def longest_tick(panel: Panel) -> int:
    """Return how many characters the longest text left of a panel has."""
    if isinstance(panel.mark, Bars | Intervals | Distributions):
        return max(len(label) for label in panel.mark.labels)
    return max((len(text) for _, text in panel.y_ticks or ()), default=0)


def safe(text: str) -> str:
    """Escape what plotly would read as HTML: labels may come from a user's text."""
    return html.escape(text.translate(STAND_INS), quote=False)
