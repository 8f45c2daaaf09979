"""Figures of cells, pictures, tokens and bars, as bytes for a canvas in the browser.

    4 bytes    length n of the header, little endian
    n bytes    header: JSON, padded with spaces so that n is a multiple of 4
    the rest   float32 values and RGBA pixels, at the offsets that the header gives

The dashboard draws these figures without plotly, whose 4.7 MB a browser would have to load first.
Several figures of one layout become frames of one element; where their values exceed 1 MB they are
sent as 8-bit codes on their shared scale.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from damcha.errors import InputError
from damcha.figures.spec import (
    Array,
    Bars,
    Figure,
    Heatmap,
    ImageGrid,
    Panel,
    Scale,
    Sentence,
    Tokens,
    mosaic,
    scales,
    token_cells,
)
from damcha.figures.style import CYCLE, DARK, LIGHT, stops
from damcha.figures.words import STAND_INS

Drawable = Heatmap | ImageGrid | Tokens | Bars | Sentence
CODED_ABOVE = 1_000_000
"""Bytes of values above which frames are sent as codes."""


def drawable(figure: Figure) -> bool:
    """Whether a canvas can draw every mark of a figure."""
    return all(isinstance(panel.mark, Drawable) for panel in figure.panels)


def to_canvas(
    frames: Sequence[Figure],
    room: int,
    dark: bool = False,
    labels: Sequence[str] = (),
    later: str = "",
) -> bytes:
    """Return figures of one layout as frames of one canvas, `room` pixels wide at most.

    `labels` name the frames, e.g. "epoch 12"; `later` is the address of a script that the browser
    may fetch once it is idle.

    Raises
    ------
    InputError
        If the frames differ in their scales or the shapes of their panels, or a mark needs plotly.
    """
    first = frames[0]
    shared = scales(first)
    for frame in frames:
        if not drawable(frame):
            raise InputError(f"figure '{frame.name}' has a mark that a canvas cannot draw")
        if scales(frame) != shared or _shape(frame) != _shape(first):
            raise InputError("frames: all must have the scales and shapes of the first")
    body = _Body()
    cells = sum(
        panel.mark.values.size
        for frame in frames
        for panel in frame.panels
        if isinstance(panel.mark, Heatmap)
    )
    body.coded = len(frames) > 1 and 4 * cells > CODED_ABOVE
    panels = [
        _panel([frame.panels[k] for frame in frames], shared, body)
        for k in range(len(first.panels))
    ]
    theme = DARK if dark else LIGHT
    head = {
        "title": _words(first.title),
        "caption": first.caption,
        "columns": first.n_columns,
        "room": room,
        "later": later,
        "frames": [_words(label) for label in labels] if len(frames) > 1 else [""],
        "scales": [
            {
                "limits": scale.limits,
                "stops": stops(scale.colours, dark),
                "label": _words(scale.label),
            }
            for scale in shared
        ],
        "theme": {**asdict(theme), "accent": CYCLE[5] if dark else CYCLE[0]},
        "panels": panels,
    }
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    return len(text).to_bytes(4, "little") + text + b"".join(body.parts)


def from_canvas(content: bytes) -> tuple[dict[str, Any], list[list[Array]]]:
    """Read what :func:`to_canvas` wrote: the header, and each panel's float32 frames of cells."""
    size = int.from_bytes(content[:4], "little")
    head = json.loads(content[4 : 4 + size])
    body = content[4 + size :]
    values = []
    for panel in head["panels"]:
        frames = []
        if panel["mark"] == "cells" and not panel["codes"]:
            n = panel["rows"] * panel["columns"]
            shape = (panel["rows"], panel["columns"])
            frames = [np.frombuffer(body, "<f4", n, at).reshape(shape) for at in panel["at"]]
        values.append(frames)
    return head, values


class _Body:
    """The binary part as it grows; a part that comes again is stored once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.coded = False
        self._places: dict[bytes, int] = {}
        self._length = 0

    def add(self, array: Array) -> int:
        content = array.tobytes()
        content += b"\0" * (-len(content) % 4)
        if content not in self._places:
            self._places[content] = self._length
            self.parts.append(content)
            self._length += len(content)
        return self._places[content]


def _panel(frames: Sequence[Panel], shared: Sequence[Scale], body: _Body) -> dict[str, Any]:
    panel = frames[0]
    mark = panel.mark
    made: dict[str, Any] = {
        "title": _words(panel.title),
        "xLabel": _words(panel.x_label),
        "yLabel": _words(panel.y_label),
        "xTicks": [(at, _words(text)) for at, text in panel.x_ticks or ()],
        "yTicks": [(at, _words(text)) for at, text in panel.y_ticks or ()],
        "rowTitle": _words(getattr(panel, "row_title", "")),
    }
    if isinstance(mark, Sentence):
        return made | {"mark": "sentence", "text": _words(mark.text)}
    if isinstance(mark, Bars):
        values = [float(value) for value in mark.values]
        return made | {
            "mark": "bars", "labels": [_words(label) for label in mark.labels], "values": values,
        }  # fmt: skip
    if isinstance(mark, ImageGrid):
        pictures = [mosaic(frame.mark) for frame in frames]  # type: ignore[arg-type]
        rows, columns = pictures[0].shape[:2]
        at = [body.add(picture) for picture in pictures]
        return made | {
            "mark": "picture", "rows": rows, "columns": columns, "at": at, "aspect": 1,
        }  # fmt: skip
    if isinstance(mark, Tokens):
        tokens, texts = token_cells(mark)
        names = [_words(text) for row in texts for text in row]
        return made | {
            "mark": "cells", "rows": len(tokens), "columns": tokens.shape[1], "codes": False,
            "at": [body.add(tokens.astype("<f4"))], "scale": shared.index(mark.scale),
            "rowLines": [], "columnLines": [], "aspect": None, "texts": names, "hover": names,
        }  # fmt: skip
    assert isinstance(mark, Heatmap)
    matrices = [frame.mark.values for frame in frames]  # type: ignore[union-attr]
    rows, columns = mark.values.shape
    return made | {
        "mark": "cells", "rows": rows, "columns": columns, "codes": body.coded,
        "at": [
            body.add(_codes(values, mark.scale) if body.coded else values.astype("<f4"))
            for values in matrices
        ],
        "scale": shared.index(mark.scale),
        "rowLabels": [_words(label) for label in mark.row_labels],
        "columnLabels": [_words(label) for label in mark.column_labels],
        "rowLines": mark.row_lines, "columnLines": mark.column_lines,
        "clickable": mark.clickable, "write": mark.write_values, "aspect": mark.cell_aspect,
    }  # fmt: skip


def _codes(values: Array, scale: Scale) -> Array:
    """0 … 254 between the limits of a scale; 255 where there is no value."""
    low, high = scale.limits
    with np.errstate(invalid="ignore"):
        codes = np.clip(np.rint((values - low) / (high - low) * 254), 0, 254)
    return np.where(np.isnan(values), 255, codes).astype(np.uint8)


def _shape(figure: Figure) -> list[tuple[type, tuple[int, ...]]]:
    return [(type(panel.mark), getattr(panel.mark, "values", np.empty(0)).shape)
            for panel in figure.panels]  # fmt: skip


def _words(text: str) -> str:
    return text.translate(STAND_INS)
