"""Figures on screen, through plotly.

Arrays go to plotly as NumPy float32, which it sends as base64; lists would triple the size. Hover
labels of a matrix are its two category axes, so no per-cell text is sent. Everything that a
template would set is set here: Streamlit replaces plotly's default template.
"""

from __future__ import annotations

import io
import textwrap
from base64 import b64encode
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import plotly.graph_objects as go

from damcha.figures.screen_axes import (
    Place,
    axes_of,
    coloraxis,
    height,
    labelled,
    longest_tick,
    safe,
    scene_of,
)
from damcha.figures.spec import (
    Array,
    Bars,
    Contour,
    Distributions,
    Figure,
    Heatmap,
    ImageGrid,
    Intervals,
    Lines,
    Mark,
    Scatter,
    Sentence,
    Series,
    Surface,
    Tokens,
    mosaic,
    scales,
    token_cells,
)
from damcha.figures.style import CYCLE, DARK, LIGHT, ink_on

FONT = '"Source Sans", "Source Sans 3", system-ui, -apple-system, "Segoe UI", sans-serif'
WIDTH = 720
"""Width in pixels for which heights and tick spacing are chosen, unless a page names its own."""
READABLE_CELL = 36
"""Width in pixels of a cell that has room for its number."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star", "cross", "triangle-down")
"""Shapes of groups of points: no group is told by its colour alone."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CLICKABLE_CELLS = 64 * 64
"""Above this a click layer would cost more than the picture."""


def to_plotly(figure: Figure, dark: bool = False, room: int = WIDTH) -> go.Figure:
    """Return the figure for the screen, transparent, for a light or a dark page.

    ``room`` is how many pixels the page has for it: the height follows.
    """
    theme = DARK if dark else LIGHT
    shared = scales(figure)
    n_columns = min(figure.n_columns, len(figure.panels))
    n_rows = -(-len(figure.panels) // n_columns)
    bars = 92 * len(shared)
    left = 64 if any(panel.y_label or panel.y_ticks for panel in figure.panels) else 12
    left = max(left, *(7 * longest_tick(panel) + 24 for panel in figure.panels))
    left += 44 * any(panel.row_title for panel in figure.panels)
    inner = room - left - bars - 8
    gap_x = 0.0 if n_columns == 1 else 14 if not labelled(figure.panels) else 80
    gap_y = 30 if not labelled(figure.panels) else 84
    width = (inner - gap_x * (n_columns - 1)) / n_columns
    rows = [figure.panels[k : k + n_columns] for k in range(0, len(figure.panels), n_columns)]
    heights = [max(height(panel.mark, width) for panel in row) for row in rows]
    total = sum(heights) + gap_y * (n_rows - 1)
    top = 30 + 24 * bool(figure.title) if any(p.title for p in figure.panels) else 44
    bottom = 56 if any(p.x_label or p.x_ticks for p in figure.panels) else 16
    layout: dict[str, Any] = {
        "template": "none",
        "autosize": True,
        "height": round(total + top + bottom),
        "margin": {"l": left, "r": bars + 8, "t": top, "b": bottom},
        "font": {"family": FONT, "size": 13, "color": theme.text},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
        "hovermode": "closest",
        "dragmode": "zoom",
        "shapes": [],
        "annotations": [],
        "showlegend": False,
        "uirevision": figure.name,
    }
    if figure.title:
        layout["title"] = {
            "text": safe(figure.title),
            "font": {"size": 15},
            "x": 0,
            "xref": "container",
            "pad": {"l": 8, "t": 10},
            "y": 1,
            "yanchor": "top",
        }
    for k, scale in enumerate(shared):
        layout[f"coloraxis{k + 1 if k else ''}"] = coloraxis(
            scale, k, int(np.clip(total / 60, 2, 7)), dark, theme
        )
        if scale.label and total > 60:
            # A note of ours: plotly sets a bar's own title over its tick texts.
            layout["annotations"].append(
                {
                    "text": safe(scale.label),
                    **{"x": 1 + 0.15 * k, "xref": "paper", "xanchor": "center", "xshift": 78},
                    **{"y": 0.5, "yref": "paper", "textangle": -90, "showarrow": False},
                    "font": {"size": 12, "color": theme.muted},
                }
            )
    traces: list[Any] = []
    told: set[str] = set()
    y_top = 1.0
    for r, row in enumerate(rows):
        y_bottom = max(0.0, y_top - heights[r] / total)
        for c, panel in enumerate(row):
            number = r * n_columns + c + 1
            own = getattr(panel.mark, "scale", None)
            colour = None if own is None else shared.index(own)
            place = Place(
                axis=str(number) if number > 1 else "",
                width=width,
                height=heights[r],
                theme=theme,
                dark=dark,
                coloraxis=None if colour is None else f"coloraxis{colour + 1 if colour else ''}",
            )
            x_left = c * (width + gap_x) / inner
            across, down = [x_left, min(1.0, x_left + width / inner)], [y_bottom, y_top]
            if isinstance(panel.mark, Surface):
                layout[f"scene{place.axis}"] = scene_of(panel, panel.mark, theme) | {
                    "domain": {"x": across, "y": down}
                }
            else:
                x_axis, y_axis = axes_of(panel, place)
                x_axis["domain"], y_axis["domain"] = across, down
                x_axis["anchor"], y_axis["anchor"] = f"y{place.axis}", f"x{place.axis}"
                layout[f"xaxis{place.axis}"], layout[f"yaxis{place.axis}"] = x_axis, y_axis
            drawn = _draw(panel.mark, place, layout)
            for trace in drawn:  # one legend speaks for all panels
                if isinstance(trace, go.Scatter) and trace.showlegend:
                    trace.showlegend = trace.name not in told
                    told.add(trace.name)
            traces += drawn
            note: dict[str, Any] = {"showarrow": False, "xref": "paper", "yref": "paper"}
            if panel.title:
                layout["annotations"].append(
                    note
                    | {"text": _wrapped(panel.title, width / 6.5), "x": sum(across) / 2}
                    | {"y": y_top}
                    | {"yanchor": "bottom", "font": {"size": 13, "color": theme.muted}}
                )
            if panel.row_title:
                layout["annotations"].append(
                    note
                    | {"text": _wrapped(panel.row_title, heights[r] / 7), "x": across[0]}
                    | {"y": sum(down) / 2}
                    | {"textangle": -90, "xanchor": "left", "xshift": 2 - left}
                    | {"font": {"size": 13, "color": theme.text}}
                )
        y_top = y_bottom - gap_y / total
    return go.Figure(data=traces, layout=layout)


@singledispatch
def _draw(mark: Mark, place: Place, layout: dict[str, Any]) -> list[Any]:
    """Return a mark's traces; shapes and notes it needs go into the layout."""
    raise TypeError(f"no screen renderer for {type(mark).__name__}; add one to screen.py")


@_draw.register
def _(mark: Heatmap, place: Place, layout: dict[str, Any]) -> list[Any]:
    rows, columns = (
        [safe(label) for label in labels] for labels in (mark.row_labels, mark.column_labels)
    )
    n_rows, n_columns = mark.values.shape
    if np.isnan(mark.values).any():
        layout["shapes"].append(
            {
                "type": "rect",
                **{"x0": 0, "x1": 1, "y0": 0, "y1": 1},
                **_domain(place),
                "layer": "below",
                "line": {"width": 0},
                "fillcolor": place.theme.blank,
            }
        )
    _rule(mark, n_rows, n_columns, place, layout)
    hover = "%{y}<br>%{x}<br><b>%{z:.4g}</b><extra></extra>"
    # Numbers too small to read would still cost the browser most of the drawing.
    roomy = place.width / n_columns >= READABLE_CELL
    traces: list[Any] = [
        go.Heatmap(
            z=np.asarray(mark.values, np.float32),
            x=columns,
            y=rows,
            coloraxis=place.coloraxis,
            hovertemplate=hover,
            hoverongaps=False,
            texttemplate="%{z:.3g}" if mark.write_values and roomy else None,
            xaxis=f"x{place.axis}",
            yaxis=f"y{place.axis}",
        )
    ]
    if mark.clickable and mark.values.size <= CLICKABLE_CELLS:
        traces.append(_click_layer(mark, rows, columns, place))
    return traces


def _rule(
    mark: Heatmap | Contour, n_rows: int, n_columns: int, place: Place, layout: dict[str, Any]
) -> None:
    """Draw the lines between blocks."""
    for across, at in [(False, line) for line in mark.row_lines] + [
        (True, line) for line in mark.column_lines
    ]:
        ends = (-0.5, (n_rows if across else n_columns) - 0.5)
        (x0, x1), (y0, y1) = ((at, at), ends) if across else (ends, (at, at))
        layout["shapes"].append(
            {
                "type": "line",
                **{"x0": x0, "x1": x1, "y0": y0, "y1": y1},
                **{"xref": f"x{place.axis}", "yref": f"y{place.axis}"},
                "line": {"color": place.theme.rule, "width": 0.8},
                "opacity": 0.55,
            }
        )


def _click_layer(mark: Heatmap, rows: list[str], columns: list[str], place: Place) -> go.Scatter:
    """Return unseen points on the cells, since plotly reports no selection of heatmap cells."""
    n_rows, n_columns = mark.values.shape
    cell = min(place.width / n_columns, place.height / n_rows)
    unseen = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=columns * n_rows,
        y=[name for name in rows for _ in columns],
        # As lists: a click on typed rows would come back as {"0": a, "1": b}.
        customdata=[list(cell) for cell in np.ndindex(n_rows, n_columns)],
        text=[f"{value:.4g}" for value in mark.values.ravel()],
        mode="markers",
        marker={"size": cell, "symbol": "square", "opacity": 0, "color": place.theme.muted},
        selected=unseen,
        unselected=unseen,
        hovertemplate="%{y}<br>%{x}<br><b>%{text}</b><br>click to open<extra></extra>",
        xaxis=f"x{place.axis}",
        yaxis=f"y{place.axis}",
    )


@_draw.register
def _(mark: Tokens, place: Place, layout: dict[str, Any]) -> list[Any]:
    values, texts = token_cells(mark)
    for r, row in enumerate(texts):
        for c, text in enumerate(row):
            if text:
                layout["annotations"].append(
                    {
                        "text": safe(text),
                        **{"x": c, "y": r, "showarrow": False},
                        **{"xref": f"x{place.axis}", "yref": f"y{place.axis}"},
                        "font": {
                            "size": 12,
                            "color": ink_on(mark.scale, float(values[r, c]), place.dark),
                        },
                    }
                )
    return [
        go.Heatmap(
            z=values,
            text=[[safe(text) for text in row] for row in texts],
            coloraxis=place.coloraxis,
            hovertemplate="%{text}<br><b>%{z:.4g}</b><extra></extra>",
            hoverongaps=False,
            **{"xgap": 1, "ygap": 3, "xaxis": f"x{place.axis}", "yaxis": f"y{place.axis}"},
        )
    ]


@_draw.register
def _(mark: Contour, place: Place, layout: dict[str, Any]) -> list[Any]:
    low, high = mark.scale.limits
    n_rows, n_columns = mark.values.shape
    _rule(mark, n_rows, n_columns, place, layout)
    return [
        go.Contour(
            z=np.asarray(mark.values, np.float32),
            coloraxis=place.coloraxis,
            contours={"start": low, "end": high, "size": (high - low) / mark.n_levels},
            line={"width": 0.6, "color": place.theme.muted},
            # Labels of rows and columns as text: the axes of level lines are numbers.
            hovertemplate="row %{y}<br>column %{x}<br><b>%{z:.4g}</b><extra></extra>",
            **{"xaxis": f"x{place.axis}", "yaxis": f"y{place.axis}"},
        )
    ]


@_draw.register
def _(mark: Surface, place: Place, layout: dict[str, Any]) -> list[Any]:
    return [
        go.Surface(
            z=np.asarray(mark.values, np.float32),
            coloraxis=place.coloraxis,
            scene=f"scene{place.axis}",
            hovertemplate="row %{y}<br>column %{x}<br><b>%{z:.4g}</b><extra></extra>",
            lighting={"ambient": 0.95, "diffuse": 0.25, "specular": 0.02, "roughness": 0.9},
        )
    ]


@_draw.register
def _(mark: Intervals, place: Place, layout: dict[str, Any]) -> list[Any]:
    axes = {"xaxis": f"x{place.axis}", "yaxis": f"y{place.axis}"}
    if mark.reference is not None:
        layout["shapes"].append(
            {
                "type": "line",
                **{"x0": mark.reference, "x1": mark.reference, "y0": 0, "y1": 1},
                **{"xref": f"x{place.axis}", "yref": f"y{place.axis} domain"},
                "line": {"color": place.theme.muted, "width": 1, "dash": "dash"},
            }
        )
    ranges = [f"{low:.4g} to {high:.4g}" for low, high in zip(mark.lows, mark.highs, strict=True)]
    return [
        go.Scatter(
            x=mark.centres,
            y=np.arange(len(mark.labels)),
            mode="markers",
            marker={"color": _cycle(0, place.dark), "size": 8},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": mark.highs - mark.centres,
                "arrayminus": mark.centres - mark.lows,
                "thickness": 1.5,
            },
            text=[
                f"{safe(label)}<br><b>{centre:.4g}</b> ({span})"
                for label, centre, span in zip(mark.labels, mark.centres, ranges, strict=True)
            ],
            hovertemplate="%{text}<extra></extra>",
            **axes,
        )
    ]


@_draw.register
def _(mark: Distributions, place: Place, layout: dict[str, Any]) -> list[Any]:
    found = mark.quantiles()
    return [
        go.Box(
            y=np.arange(len(mark.labels)),
            **{"lowerfence": found[:, 0], "q1": found[:, 1], "median": found[:, 2]},
            **{"q3": found[:, 3], "upperfence": found[:, 4], "mean": mark.means()},
            **{"boxmean": True, "orientation": "h", "width": 0.6, "hoverinfo": "x"},
            marker={"color": _cycle(0, place.dark)},
            line={"width": 1.4},
            **{"xaxis": f"x{place.axis}", "yaxis": f"y{place.axis}"},
        )
    ]


@_draw.register
def _(mark: Lines, place: Place, layout: dict[str, Any]) -> list[Any]:
    mode = "lines+markers" if mark.markers else "lines"
    return _series(mark.series, mode, place, layout)


@_draw.register
def _(mark: Scatter, place: Place, layout: dict[str, Any]) -> list[Any]:
    traces = _series(mark.series, "markers", place, layout)
    first = 0
    for k, (trace, line) in enumerate(zip(traces, mark.series, strict=True)):
        trace.marker.symbol = SYMBOLS[k % len(SYMBOLS)]
        if mark.scale is not None and line.values is not None:
            trace.marker.color, trace.marker.coloraxis = line.values, place.coloraxis
            trace.customdata = line.values
            trace.hovertemplate = "%{text}<br><b>%{customdata:.4g}</b><extra></extra>"
        if mark.clickable:
            trace.customdata = [[first + j] for j in range(len(line.x))]
            trace.hovertemplate = "%{text}<br>click to open<extra></extra>"
            trace.unselected = trace.selected = {"marker": {"opacity": 0.85}}
        first += len(line.x)
    return traces


@_draw.register
def _(mark: Bars, place: Place, layout: dict[str, Any]) -> list[Any]:
    return [
        go.Bar(
            x=mark.values,
            y=np.arange(len(mark.labels)),
            orientation="h",
            marker={"color": CYCLE[0] if not place.dark else CYCLE[5]},
            customdata=[safe(label) for label in mark.labels],
            text=[f"{value:.3g}" for value in mark.values],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{customdata}<br><b>%{x:.4g}</b><extra></extra>",
            xaxis=f"x{place.axis}",
            yaxis=f"y{place.axis}",
        )
    ]


@_draw.register
def _(mark: ImageGrid, place: Place, layout: dict[str, Any]) -> list[Any]:
    source = f"data:image/png;base64,{b64encode(_png(mosaic(mark))).decode()}"
    axes = {"xaxis": f"x{place.axis}", "yaxis": f"y{place.axis}"}
    return [go.Image(source=source, hovertemplate="row %{y}, column %{x}<extra></extra>", **axes)]


@_draw.register
def _(mark: Sentence, place: Place, layout: dict[str, Any]) -> list[Any]:
    width = max(24, int(place.width / 7.5))
    layout["annotations"].append(
        {
            "text": _wrapped(mark.text, width),
            **{"x": 0.5, "y": 0.5, "showarrow": False},
            **_domain(place),
            "font": {"size": 14, "color": place.theme.muted},
        }
    )
    axes = {"xaxis": f"x{place.axis}", "yaxis": f"y{place.axis}"}
    # Axes without a trace are not drawn at all, and notes on them neither.
    return [go.Scatter(x=[None], y=[None], hoverinfo="skip", **axes)]


def _series(series: Sequence[Series], mode: str, place: Place, layout: dict[str, Any]) -> list[Any]:
    if len(series) > 1:
        layout["showlegend"] = True
        layout["legend"] = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1}
        layout["legend"] |= {"yref": "container", "yanchor": "top"}
        if len(series) > 4:  # a long list would run into the title
            layout["legend"] = {"orientation": "v", "x": 1.01, "y": 1}
            layout["margin"]["r"] = max(layout["margin"]["r"], 130)
    traces = []
    for k, line in enumerate(series):
        colour = _cycle(k, place.dark)
        axes = {"xaxis": f"x{place.axis}", "yaxis": f"y{place.axis}"}
        if line.low is not None and line.high is not None:
            traces.append(
                go.Scatter(
                    x=np.concatenate([line.x, line.x[::-1]]),
                    y=np.concatenate([line.high, line.low[::-1]]),
                    **{"fill": "toself", "mode": "none", "hoverinfo": "skip", "opacity": 0.25},
                    **{"fillcolor": colour, "showlegend": False},
                    **axes,
                )
            )
        traces.append(
            go.Scatter(
                x=line.x,
                y=line.y,
                mode=mode,
                name=safe(line.name),
                legendgroup=safe(line.name),
                showlegend=len(series) > 1,
                line={
                    "color": colour,
                    "width": 2,
                    "dash": DASHES[(k + k // len(CYCLE)) % len(DASHES)],
                },
                marker={"color": colour, "size": 7, "opacity": 0.85},
                text=[safe(label) for label in line.labels] or None,
                hovertemplate=("%{text}<br>" if line.labels else "")
                + "%{x:.4g}, <b>%{y:.4g}</b><extra></extra>",
                **axes,
            )
        )
    return traces


def _wrapped(text: str, width: float) -> str:
    return "<br>".join(safe(line) for line in textwrap.wrap(text, max(8, int(width))))


def _domain(place: Place) -> dict[str, str]:
    return {"xref": f"x{place.axis} domain", "yref": f"y{place.axis} domain"}


def _cycle(k: int, dark: bool) -> str:
    colours = (CYCLE[5], CYCLE[4], *CYCLE[2:4], CYCLE[1], CYCLE[0], CYCLE[6]) if dark else CYCLE
    return colours[k % len(colours)]


def _png(pixels: Array) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
