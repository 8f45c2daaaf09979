"""Figures on paper, through matplotlib: PDF, SVG and PNG of exact width, identical byte for byte.

The page is exactly as wide as the venue's column; its height follows from the panels. Everything
is laid out here in inches, so nothing moves between machines. Fonts are Type 42 (conferences
refuse Type 3), text stays text, and matrices are embedded cell by cell.
"""

from __future__ import annotations

import io
import os
import textwrap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal, cast, get_args

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure as Page
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from damcha.errors import InputError
from damcha.figures.paper_text import INCH, RC, plain, text_width
from damcha.figures.spec import (
    Bars,
    Contour,
    Distributions,
    Figure,
    Heatmap,
    ImageGrid,
    Intervals,
    Lines,
    Mark,
    Panel,
    Scale,
    Scatter,
    Sentence,
    Series,
    Surface,
    Ticks,
    Tokens,
    mosaic,
    scales,
    token_cells,
)
from damcha.figures.style import CYCLE, LIGHT, ink_on, number, page_width, stops, thin

Format = Literal["pdf", "svg", "png"]
_LOCK = threading.Lock()  # rcParams belong to the process, not to the thread

SYMBOLS = ("o", "D", "s", "^", "X", "*", "P", "v")
MOST_IN_PANEL, KEY_COLUMNS = 5, 5
"""Lines that a legend within a panel may name; more are named below all panels, so many a row."""
DASHES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (8, 2, 1, 2)))
"""Shapes and dashes of groups, in the order of ``screen.py``: none is told by colour alone (there
is one shape more than there are colours, so that a colour that returns has another shape)."""

LINE = 10 / INCH
"""Height of a line of text in inches."""


def save(figure: Figure, path: str | Path, dpi: int = 300) -> Path:
    """Write a figure to a .pdf, .svg or .png file; the file appears whole or not at all."""
    path = Path(path)
    content = render(figure, _format(path.suffix.lower().lstrip(".")), dpi)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(
            f"{path.name}: cannot be written ({error.strerror}); choose a folder "
            "that exists and can be written to"
        ) from None
    return path


def render(figure: Figure, fmt: Format, dpi: int = 300) -> bytes:
    """Return a figure as the bytes of a file; equal figures give equal bytes."""
    fmt = _format(fmt)
    buffer = io.BytesIO()
    with _LOCK, matplotlib.rc_context(RC):
        page = draw(figure)
        page.savefig(buffer, format=fmt, dpi=dpi, metadata=_metadata(figure, fmt))
    return buffer.getvalue()


@dataclass(frozen=True)
class _Box:
    """A panel's axes in inches from the page's top left, and what lies about it."""

    left: float
    top: float
    width: float
    height: float


def draw(figure: Figure) -> Page:
    """Lay a figure out and draw it; callers hold the lock and have set ``RC``."""
    width = page_width(figure.venue, figure.column)
    boxes, bar_left, height = layout(figure, width)
    long = max((len(p.mark.series) for p in figure.panels if isinstance(p.mark, Lines)), default=0)
    below = long > MOST_IN_PANEL
    height += 0.17 * -(-long // KEY_COLUMNS) + 0.05 if below else 0
    page = Page(figsize=(width, height))
    FigureCanvasAgg(page)
    if figure.title:
        room = int((width - 0.1) * INCH / 3.6)
        text = "\n".join(textwrap.wrap(plain(figure.title), room)[:2])
        page.text(
            0.05 / width, 1 - 0.05 / height, text, va="top", ha="left", size=8, parse_math=False
        )
    told: set[tuple[str, ...]] = set()
    for panel, box in zip(figure.panels, boxes, strict=True):
        solid = "3d" if isinstance(panel.mark, Surface) else None
        axes = page.add_axes(_fractions(box, width, height), projection=solid)
        _draw(panel.mark, axes, box)
        if isinstance(panel.mark, Lines | Scatter):
            names = tuple(series.name for series in panel.mark.series)
            legend = axes.get_legend()
            if names in told and legend:  # the first panel says it for all
                legend.remove()
            if below and not told and legend:
                handles, labels = axes.get_legend_handles_labels()
                legend.remove()
                page.legend(
                    handles, labels, loc="lower center", ncols=KEY_COLUMNS, frameon=False,
                    handlelength=2.4, borderpad=0.1, labelspacing=0.3,
                )  # fmt: skip
            told.add(names)
        _words(panel, axes, box)
        if panel.row_title:
            middle = 1 - (box.top + box.height / 2) / height
            lines = textwrap.wrap(plain(panel.row_title), max(8, int(box.height * INCH / 3.6)))
            page.text(
                0.13 / width, middle, "\n".join(lines[:2]), rotation=90, size=7, va="center",
                ha="center", linespacing=0.95, parse_math=False,
            )  # fmt: skip
    first, last = boxes[0], boxes[-1]
    for scale in scales(figure):
        box = _Box(bar_left, first.top, 0.07, last.top + last.height - first.top)
        _bar(scale, page.add_axes(_fractions(box, width, height)), box)
        bar_left += _bar_room(scale)
    return page


def layout(figure: Figure, width: float) -> tuple[list[_Box], float, float]:
    """Return the panels' boxes, the left edge of the first colour bar, and the page's height."""
    panels = figure.panels
    n_columns = min(figure.n_columns, len(panels))
    rows = [panels[k : k + n_columns] for k in range(0, len(panels), n_columns)]
    bars = sum(map(_bar_room, scales(figure)))
    margin = [max(_left(row[c]) for row in rows if c < len(row)) for c in range(n_columns)]
    margin[0] += 0.26 * any(panel.row_title for panel in panels)
    right = bars or 0.08
    gap = 0.06
    free = width - sum(margin) - right - gap * (n_columns - 1)
    panel_width = free / n_columns
    # A single square metric would otherwise fill a two-column page from edge to edge.
    panel_width = min(panel_width, 4.2)
    slack = (free - n_columns * panel_width) / 2
    top = 0.05 + LINE * 1.15 * bool(figure.title) + 0.02
    boxes = []
    for row in rows:
        height = max(_height(panel.mark, panel_width) for panel in row)
        top += LINE * 1.1 * max(len(_title_lines(panel, panel_width)) for panel in row)
        left = slack
        for c, panel in enumerate(row):
            left += margin[c]
            # Curves take what height the row has; pictures keep their shape.
            fixed = not isinstance(panel.mark, Lines | Scatter)
            own = _height(panel.mark, panel_width) if fixed else height
            boxes.append(_Box(left, top + (height - own) / 2, panel_width, own))
            left += panel_width + gap
        top += height + max(_below(panel) for panel in row)
    bar_left = slack + sum(margin) + n_columns * panel_width + gap * (n_columns - 1) + 0.07
    return boxes, bar_left, round(top + 0.03, 3)


@singledispatch
def _draw(mark: Mark, axes: Axes, box: _Box) -> None:
    raise TypeError(f"no paper renderer for {type(mark).__name__}; add one to paper.py")


@_draw.register
def _(mark: Heatmap, axes: Axes, box: _Box) -> None:
    rows, columns = mark.values.shape
    axes.set_facecolor(LIGHT.blank)
    low, high = mark.scale.limits
    axes.imshow(
        np.ma.masked_invalid(mark.values),
        cmap=_colours(mark.scale),
        norm=Normalize(low, high),
        interpolation="none",
        aspect="auto",
    )
    rule: dict[str, Any] = {"color": LIGHT.rule, "linewidth": 0.35, "alpha": 0.7}
    axes.hlines(mark.row_lines, -0.5, columns - 0.5, **rule)
    axes.vlines(mark.column_lines, -0.5, rows - 0.5, **rule)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    if mark.write_values:
        size = min(7.0, box.width / columns * INCH / 2.6)
        for (r, c), value in np.ndenumerate(mark.values):
            ink = ink_on(mark.scale, float(value))
            text = f"{value:z.2f}".replace("-", "−")
            axes.text(c, r, text, color=ink, size=size, ha="center", va="center")


@_draw.register
def _(mark: Contour, axes: Axes, box: _Box) -> None:
    rows, columns = mark.values.shape
    shared: dict[str, Any] = {"levels": mark.levels, "norm": Normalize(*mark.scale.limits)}
    # Filled areas meet without the white hairlines of antialiasing.
    axes.contourf(mark.values, cmap=_colours(mark.scale), extend="neither", **shared)
    axes.contour(mark.values, levels=mark.levels, colors=LIGHT.rule, linewidths=0.15)
    rule: dict[str, Any] = {"color": LIGHT.rule, "linewidth": 0.35, "alpha": 0.7}
    axes.hlines(mark.row_lines, 0, columns - 1, **rule)
    axes.vlines(mark.column_lines, 0, rows - 1, **rule)
    axes.set(xlim=(0, columns - 1), ylim=(rows - 1, 0))


@_draw.register
def _(mark: Surface, axes: Axes, box: _Box) -> None:
    solid: Any = axes  # an Axes3D
    rows, columns = mark.values.shape
    x, y = np.meshgrid(np.arange(columns), np.arange(rows))
    low, high = mark.scale.limits
    solid.plot_surface(
        x, y, mark.values, cmap=_colours(mark.scale), norm=Normalize(low, high),
        rcount=rows, ccount=columns, linewidth=0, antialiased=False,
    )  # fmt: skip
    solid.set(xlim=(0, columns - 1), ylim=(rows - 1, 0), zlim=(low, high))
    small = box.width < 1.3  # no room for numbers; the colour bar has them
    solid.set_box_aspect((1, 1, 0.55), zoom=1.35 if small else 1.0)
    solid.view_init(elev=mark.elevation, azim=mark.azimuth)
    solid.set_proj_type("ortho")
    solid.zaxis.set_major_locator(MaxNLocator(4))
    solid.zaxis.set_major_formatter(
        NullFormatter() if small else FuncFormatter(lambda value, _: number(value))
    )
    for axis in (solid.xaxis, solid.yaxis, solid.zaxis):
        axis.pane.set_visible(False)
        axis._axinfo["grid"].update(color=LIGHT.grid, linewidth=0.3)
        axis.set_tick_params(labelsize=5.5, pad=-3, width=0.3, length=1)
        axis.line.set_linewidth(0.4)
        axis.labelpad = -11


@_draw.register
def _(mark: Intervals, axes: Axes, box: _Box) -> None:
    places = np.arange(len(mark.labels))
    if mark.reference is not None:
        axes.axvline(mark.reference, color=LIGHT.muted, linewidth=0.6, linestyle="--")
    axes.errorbar(
        mark.centres, places, xerr=(mark.centres - mark.lows, mark.highs - mark.centres),
        fmt="o", color=CYCLE[0], markersize=3, linewidth=1, capsize=1.5,
    )  # fmt: skip
    _named_rows(mark.labels, axes)


@_draw.register
def _(mark: Distributions, axes: Axes, box: _Box) -> None:
    for k, ((p5, q25, median, q75, p95), mean) in enumerate(
        zip(mark.quantiles(), mark.means(), strict=True)
    ):
        axes.hlines(k, p5, p95, color=CYCLE[0], linewidth=0.8)
        axes.barh(k, q75 - q25, left=q25, height=0.56, color="#cfe3f3", edgecolor=CYCLE[0], lw=0.8)
        axes.vlines(median, k - 0.28, k + 0.28, color=CYCLE[0], linewidth=1.4)
        axes.plot(mean, k, "D", color=CYCLE[1], markersize=2.6)
    _named_rows(mark.labels, axes)


def _named_rows(labels: Sequence[str], axes: Axes) -> None:
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(np.arange(len(labels)), [plain(label) for label in labels], parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _open_frame(axes)


@_draw.register
def _(mark: Tokens, axes: Axes, box: _Box) -> None:
    values, texts = token_cells(mark)
    names = (
        tuple(str(k) for k in range(values.shape[0])),
        tuple(str(k) for k in range(values.shape[1])),
    )
    _draw(Heatmap(values, mark.scale, *names, cell_aspect=None), axes, box)
    axes.hlines(np.arange(1, len(values)) - 0.5, -0.5, values.shape[1] - 0.5, color="w", lw=1.5)
    for r, row in enumerate(texts):
        for c, text in enumerate(row):
            ink = ink_on(mark.scale, float(values[r, c]))
            axes.text(
                c,
                r,
                plain(text),
                color=ink,
                size=7,
                ha="center",
                va="center_baseline",
                parse_math=False,
            )


@_draw.register
def _(mark: Lines, axes: Axes, box: _Box) -> None:
    for k, line in enumerate(mark.series):
        colour = CYCLE[k % len(CYCLE)]
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linewidth=1,
            linestyle=DASHES[(k + k // len(CYCLE)) % len(DASHES)],
            marker="o" if mark.markers else "",
            markersize=2.5,
            label=plain(line.name),
        )
    if mark.log_y:
        axes.set_yscale("log")
        ends = [end(line.y) for line in mark.series for end in (np.nanmin, np.nanmax)]
        if max(ends) < 100 * min(ends):  # powers of ten would label next to nothing, or too wide
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    _open_frame(axes)
    _legend(mark.series, axes)


@_draw.register
def _(mark: Scatter, axes: Axes, box: _Box) -> None:
    if mark.equal_axes:  # the plane has an origin; a cloud of two measures need not show it
        axes.axhline(0, color=LIGHT.grid, linewidth=0.5, zorder=0)
        axes.axvline(0, color=LIGHT.grid, linewidth=0.5, zorder=0)
    for k, line in enumerate(mark.series):
        axes.scatter(
            line.x,
            line.y,
            s=6,
            marker=SYMBOLS[k % len(SYMBOLS)],
            **_point_colours(mark, line, CYCLE[k % len(CYCLE)]),
            alpha=0.8,
            linewidths=0,
            label=plain(line.name),
        )
    if mark.equal_axes:
        axes.set_aspect("equal", adjustable="datalim")
    _open_frame(axes)
    _legend(mark.series, axes)


def _point_colours(mark: Scatter, line: Series, otherwise: str) -> dict[str, Any]:
    if mark.scale is None or line.values is None:
        return {"color": otherwise}
    return {
        "c": line.values, "cmap": _colours(mark.scale), "norm": Normalize(*mark.scale.limits)
    }  # fmt: skip


@_draw.register
def _(mark: Bars, axes: Axes, box: _Box) -> None:
    places = np.arange(len(mark.labels))
    axes.barh(places, mark.values, color=CYCLE[0], height=0.72)
    high = float(mark.values.max()) or 1.0
    for k, value in enumerate(mark.values):
        axes.text(
            value + high * 0.015, k, number(float(f"{value:.3g}")), size=7, va="center_baseline"
        )
    axes.set(xlim=(0, high * 1.15), ylim=(len(places) - 0.5, -0.5))
    axes.set_yticks(places, [plain(label) for label in mark.labels], parse_math=False)
    axes.tick_params(axis="y", length=0)
    _open_frame(axes)


@_draw.register
def _(mark: ImageGrid, axes: Axes, box: _Box) -> None:
    axes.imshow(mosaic(mark), interpolation="none", aspect="auto")
    for spine in axes.spines.values():
        spine.set_visible(False)


@_draw.register
def _(mark: Sentence, axes: Axes, box: _Box) -> None:
    axes.axis("off")
    room = max(12, int(box.width * INCH / 4.2))
    text = "\n".join(textwrap.wrap(plain(mark.text), room))
    axes.text(
        0.5,
        0.5,
        text,
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=LIGHT.muted,
        parse_math=False,
    )


def _words(panel: Panel, axes: Axes, box: _Box) -> None:
    """Write a panel's title, labels and ticks."""
    if panel.title:
        title = "\n".join(_title_lines(panel, box.width))
        axes.set_title(title, pad=2.5, color=LIGHT.muted, linespacing=1.0, parse_math=False)
    axes.set_xlabel(plain(panel.x_label), labelpad=1.5, parse_math=False)
    axes.set_ylabel(plain(panel.y_label), labelpad=2, parse_math=False)
    if panel.x_ticks is not None:
        longest = max((text_width(plain(text), 7) for _, text in panel.x_ticks), default=0.1)
        _ticks(axes.set_xticks, panel.x_ticks, int(box.width / (longest + 0.06)))
    if panel.y_ticks is not None:
        _ticks(axes.set_yticks, panel.y_ticks, int(box.height / (8 / INCH)))
    if isinstance(panel.mark, Heatmap | Contour | Tokens):
        axes.tick_params(length=0)


def _title_lines(panel: Panel, width: float) -> list[str]:
    """Break a panel's title where it would run into its neighbour's."""
    room = max(8, int((width + 0.06) * INCH / 4.1))
    return textwrap.wrap(plain(panel.title), room)[:4]


def _ticks(setter: Any, ticks: Ticks, room: int) -> None:
    kept = thin(ticks, room)
    setter([at for at, _ in kept], [plain(text) for _, text in kept], parse_math=False)


def _bar(scale: Scale, axes: Axes, box: _Box) -> None:
    mappable = ScalarMappable(Normalize(*scale.limits), _colours(scale))
    short = box.height < 0.8
    bar = axes.figure.colorbar(mappable, cax=axes, ticks=_bar_ticks(scale, 2 if short else 6))
    bar.outline.set_linewidth(0.4)
    axes.tick_params(length=1.5, width=0.4, pad=1.5, labelsize=6.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    if scale.label and not short:
        axes.annotate(
            plain(scale.label),
            (0, 0.5),
            ((_bar_room(scale) - 0.1) * INCH, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="center",
            size=7,
            parse_math=False,
        )


def _bar_ticks(scale: Scale, most: int = 6) -> list[float]:
    low, high = scale.limits
    ticks = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in ticks if low <= tick <= high]


def _bar_room(scale: Scale) -> float:
    """Return the inches that a colour bar takes: gap, bar, numbers, title."""
    numbers = max(text_width(number(tick), 6.5) for tick in _bar_ticks(scale))
    return 0.07 + 0.07 + 0.05 + numbers + 0.03 + (LINE if scale.label else 0) + 0.03


def _legend(series: Sequence[Series], axes: Axes) -> None:
    if len(series) > 1:
        axes.legend(frameon=False, borderpad=0.2, handlelength=1.4, labelspacing=0.3)


def _open_frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _colours(scale: Scale) -> Colormap:
    return LinearSegmentedColormap.from_list("damcha", stops(scale.colours), 513).with_extremes(
        bad=LIGHT.blank
    )


def _height(mark: Mark, width: float) -> float:
    """Return the height in inches of a panel that is so wide."""
    if isinstance(mark, Heatmap) and mark.cell_aspect is not None:
        rows, columns = mark.values.shape
        return float(width * mark.cell_aspect * rows / columns)
    if isinstance(mark, ImageGrid):
        rows, columns = mosaic(mark).shape[:2]
        return float(width * rows / columns)
    if isinstance(mark, Tokens):
        return 0.17 * len(token_cells(mark)[1])
    if isinstance(mark, Contour):
        return float(width * mark.values.shape[0] / mark.values.shape[1])
    if isinstance(mark, Surface):
        return width * 0.85
    if isinstance(mark, Bars | Intervals | Distributions):
        return 0.15 * len(mark.labels) + 0.05
    if isinstance(mark, Sentence):
        return 0.6
    return width if isinstance(mark, Scatter) else min(width * 0.62, 2.6)


def _left(panel: Panel) -> float:
    """Return the inches that a panel's y ticks and label need."""
    ticks = [text for _, text in panel.y_ticks or ()]
    if isinstance(panel.mark, Surface):
        return 0.02
    if isinstance(panel.mark, Bars | Intervals | Distributions):
        ticks = list(panel.mark.labels)
    elif panel.y_ticks is None and isinstance(panel.mark, Lines | Scatter):
        ticks = ["−0.000"]
    text = max((text_width(plain(tick), 7) for tick in ticks), default=0.0)
    return 0.05 + (text + 0.05 if text else 0.0) + LINE * 1.1 * bool(panel.y_label)


def _below(panel: Panel) -> float:
    ticks = panel.x_ticks is None or bool(panel.x_ticks)
    ticks = ticks and not isinstance(panel.mark, Sentence | ImageGrid | Tokens | Surface)
    if isinstance(panel.mark, Surface):
        return 0.04
    return 0.04 + 0.13 * ticks + 0.14 * bool(panel.x_label)


def _fractions(box: _Box, width: float, height: float) -> tuple[float, float, float, float]:
    bottom = height - box.top - box.height
    return box.left / width, bottom / height, box.width / width, box.height / height


def _metadata(figure: Figure, fmt: Format) -> dict[str, Any]:
    title, caption = figure.title or figure.name, figure.caption
    if fmt == "pdf":
        return {"Title": title, "Subject": caption, "CreationDate": None}
    if fmt == "svg":
        return {"Title": title, "Description": caption, "Date": None}
    return {"Title": title, "Description": caption}


def _format(fmt: str) -> Format:
    if fmt not in get_args(Format):
        raise InputError(f"'.{fmt}' is not a figure format; choose one of .pdf, .svg, .png")
    return cast(Format, fmt)
