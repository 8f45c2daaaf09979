"""What one browser tab has chosen: the only module that touches Streamlit's session and the URL.

    URL ──first run──▶ Session ◀──bind──▶ widgets
     ▲                    │
     └────write_url───────┘

A widget is bound to a field of the Session by its key. Values outlive widgets that are not drawn
for a while, and a value that is no longer possible falls back to the default.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

if TYPE_CHECKING:  # the first picture does not wait for torch
    from app.boards import Collected
    from damcha.figures.metric import MetricView
    from damcha.gallery import Subject

Kind = Literal["sample", "upload", "camera", "text"]
MAX_URL_TEXT = 2000
"""Longest text, in characters, that a link carries."""


@dataclass(frozen=True, eq=False)
class Given:
    """An input as the user gave it."""

    kind: Kind
    name: str
    content: bytes
    """The file; of a text, its UTF-8."""
    digest: str
    """SHA-256 of kind, name and content: what caches go by."""

    @classmethod
    def of(cls, kind: Kind, name: str, content: bytes) -> Given:
        """Return an input with its digest."""
        head = f"{kind}\0{name}\0".encode("utf-8", "replace")
        return cls(kind, name, content, hashlib.sha256(head + content).hexdigest())


@dataclass
class Session:
    """All that one browser tab has chosen, and the last result that it saw."""

    run: str = ""
    epoch: int = -1
    device: str = "auto"
    image_input: Kind = "sample"
    text_input: Kind = "sample"
    sample: str = ""
    text: str = ""
    target: str = ""
    """What a source that was typed is to become; "" where the model may write it."""
    upload: Given | None = None
    photo: Given | None = None
    document: Given | None = None
    file_id: str = ""
    """Of the last file taken from an uploader, which keeps handing it out."""
    invert: bool = False
    frame: int = 0
    view: MetricView = "full"
    layer: int = 0
    position: int = -1
    block: tuple[int, ...] = ()
    """(query head, key head), or () for the whole metric."""
    attention_layer: int = 0
    attention_head: int = 0
    attention_query: int = -1
    venue: str = "icml"
    column: str = "single"
    epochs_runs: tuple[str, ...] = ()
    epochs_field: Any = "full"
    epochs_form: Any = "heatmap"
    epochs_head: int = 0
    epochs_smoothing: float = 0.0
    epochs_at: int = -1
    epochs_azimuth: int = -60
    epochs_elevation: int = 35
    ablate_part: str = "answers"
    ablate_names: tuple[str, ...] = ()
    ablate_head: int = 0
    ablate_key_head: int = -1
    ablate_factor: float = 0.0
    ablate_edits: tuple[tuple[int, int, float], ...] = ()
    """By hand: (query head, key head or -1 for its whole row, factor)."""
    ablate_n: int = 512
    contributions_target: Any = "loss"
    contributions_index: int = -1
    contributions_method: Any = "gradient_x_value"
    contributions_baseline: Any = "zero"
    contributions_view: Any = "blocks"
    contributions_layer: int = -1
    contributions_absolute: bool = False
    contributions_beside: str = ""
    compare_run: str = ""
    compare_epoch: int = -1
    compare_kind: str = "sample"
    compare_sample: str = ""
    compare_text: str = ""
    compare_upload: Given | None = None
    compare_layer: int = 0
    compare_part: str = "metrics"
    compare_view: Any = "full"
    compare_rank: int = 2
    compare_side: Any = "query"
    compare_measure: Any = "overlap"
    compare_indefinite: Any = "leave_out"
    atlas_n: int = 500
    atlas_part: str = "map"
    atlas_feature: Any = "head_metrics"
    atlas_map: Any = "pca"
    atlas_colour: str = "label"
    atlas_statistic: str = "norm"
    atlas_order: Any = None
    """Which held-out input each drawn point is."""
    atlas_open: bool = False
    """Whether an input was just taken there, to be opened in Inspect."""
    runs_chosen: tuple[str, ...] = ()
    runs_log: bool = False
    import_name: str = ""
    import_first: str = ""
    imported: str = ""
    """The run that an uploaded checkpoint became."""
    old_metrics: Any = None
    """Of an uploaded version-1 checkpoint, which cannot run."""
    old_layer: int = 0
    bench_attentions: tuple[str, ...] = ()
    bench_lengths: tuple[int, ...] = (64, 256)
    bench_widths: tuple[int, ...] = (128,)
    bench_kind: Any = "layer"
    bench_over: Any = "seq_len"
    board: list[Collected] = field(default_factory=list)
    """What boards.board() returns, once it was asked."""
    board_id: str = ""
    board_own: bool = False
    """Whether this tab began that board."""
    board_kept: str = ""
    """The board as it was last written."""
    given: Given | None = None
    """The input that `shown` was made from."""
    shown: Subject | None = None
    """The last result that worked: it stays on the page while something else does not."""
    notices: list[str] = field(default_factory=list)
    """Sentences about the link that this session came by."""
    linked: set[str] = field(default_factory=set)
    """Fields whose value came by the link and has not been checked yet."""


LINKED: tuple[str, ...] = (
    *("epochs_runs", "epochs_field", "epochs_form", "epochs_head", "epochs_smoothing"),
    *("epochs_at", "epochs_azimuth", "epochs_elevation", "ablate_part", "ablate_names"),
    *("contributions_target", "contributions_index", "contributions_method"),
    *("contributions_baseline", "contributions_view", "contributions_layer"),
    *("contributions_absolute", "contributions_beside"),
    *("compare_run", "compare_epoch", "compare_kind", "compare_sample", "compare_layer"),
    *("compare_part", "compare_view", "compare_rank", "compare_side", "compare_measure"),
    "compare_indefinite",
    "runs_chosen",
    *("bench_attentions", "bench_lengths", "bench_widths", "bench_kind", "bench_over"),
    *("atlas_n", "atlas_part", "atlas_feature", "atlas_map", "atlas_colour", "atlas_statistic"),
)
"""Further fields that the URL holds where they are not at their defaults: numbers, words, yes/no,
and tuples of these. A widget's :func:`bind` checks what a link asks for."""

_KEY = "damcha"
_INTEGERS = ("epoch", "layer", "position", "frame")
_NUMBERS = {"attention": ("attention_layer", "attention_head", "attention_query")}
_WORDS = ("run", "sample", "view", "device")


def is_new() -> bool:
    """Say whether this is the tab's first run."""
    return _KEY not in st.session_state


def session() -> Session:
    """Return this tab's Session; the first time, made from the URL."""
    if _KEY not in st.session_state:
        st.session_state[_KEY] = from_url(st.query_params.to_dict())
    found: Session = st.session_state[_KEY]
    return found


def bind(name: str, options: Sequence[Hashable] | None = None, default: Any = None) -> str:
    """Join a field of the Session to the widget drawn next, and return the widget's key.

    What the user set in the widget goes to the field, and is settled there.
    """
    s = session()
    told = st.session_state.get(name)
    # A button group gives None when its choice is clicked again: that changes nothing.
    if name in st.session_state and (told is not None or options is None or None in options):
        if told != getattr(s, name):
            setattr(s, name, told)
            s.notices.clear()
            s.linked.discard(name)
    settle(name, options, default)
    value = getattr(s, name)
    # Setting an equal value again would overwrite what somebody is typing.
    if name not in st.session_state or st.session_state[name] != value:
        st.session_state[name] = value
    return name


def settle(name: str, options: Sequence[Hashable] | None = None, default: Any = None) -> None:
    """Make a field one of `options`: else it becomes `default`, or the first of them.

    If the impossible value came by the link, a notice says so.
    """
    s = session()
    value = getattr(s, name)
    if options is not None and value not in options:
        if name in s.linked:
            s.notices.append(
                f"The link asks for {name.replace('_', ' ')} “{value}”, which is not there; "
                "the usual one is shown."
            )
        setattr(s, name, options[0] if default is None else default)
    s.linked.discard(name)


def assign(name: str, value: Any) -> None:
    """Set a field, and the widget bound to it if that is drawn later in this run."""
    setattr(session(), name, value)
    st.session_state[name] = value


def open_input(name: str, content: bytes, is_text: bool, target: bytes | None = None) -> None:
    """Make an input the current one, as if the user had given it; a pair has a target."""
    s = session()
    if is_text:
        assign("text", content.decode("utf-8", "replace"))
        if target is not None:
            assign("target", target.decode("utf-8", "replace"))
        assign("text_input", "text")
    else:
        s.upload = Given.of("upload", name, content)
        assign("image_input", "upload")


def choose_sample(gallery: str, names: tuple[str, ...]) -> None:
    """Take the sample that was clicked in a gallery, by the gallery's key."""
    picked = st.session_state[gallery].chosen
    if picked in names:
        session().sample = picked


def turned(key: str) -> None:
    """Keep the camera to which the user turned a 3D scene, as ``components.camera`` tells it."""
    told = st.session_state[key].turned
    if isinstance(told, list) and len(told) == 2 and all(type(angle) is int for angle in told):
        assign("epochs_azimuth", max(-180, min(180, told[0])))
        assign("epochs_elevation", max(0, min(90, told[1])))


def clicked(chart: str) -> tuple[int, ...] | None:
    """Return the (row, column) of the cell that was clicked in a chart, by the chart's key.

    Of a chart of points, the (index,) of the point.
    """
    told = st.session_state[chart]
    if "cell" in told:  # a canvas: panel, row, column
        cell = told.cell
        good = isinstance(cell, list) and len(cell) == 3 and all(type(k) is int for k in cell)
        return (cell[1], cell[2]) if good else None
    points = told.selection.points
    cell = points[0].get("customdata") if points else None
    return tuple(map(int, cell)) if isinstance(cell, list) else None


def from_url(query: Mapping[str, str]) -> Session:
    """Return the Session that a link describes; what cannot be read gets a notice."""
    s = Session()
    wrong = []
    for name in _WORDS:
        if name in query:
            setattr(s, name, query[name][:200])
            s.linked.add(name)
    for name in _INTEGERS:
        if name in query:
            try:
                setattr(s, name, _integer(query[name]))
                s.linked.add(name)
            except ValueError:
                wrong.append(name)
    for name, fields in {**_NUMBERS, "block": ("",) * 2}.items():
        if name not in query:
            continue
        try:
            numbers = [_integer(part) for part in query[name].split(",")]
            if len(numbers) != len(fields):
                raise ValueError
        except ValueError:
            wrong.append(name)
            continue
        if name == "block":
            s.block = (numbers[0], numbers[1])
            s.linked.add("block")
        else:
            for field_name, number in zip(fields, numbers, strict=True):
                setattr(s, field_name, number)
                s.linked.add(field_name)
    for name in LINKED:
        if name in query:
            try:
                setattr(s, name, _read(query[name][:200], getattr(s, name)))
                s.linked.add(name)
            except ValueError:
                wrong.append(name)
    if query.get("text", "").strip():
        s.text, s.text_input = query["text"][:MAX_URL_TEXT], "text"
        s.target = query.get("target", "")[:MAX_URL_TEXT]
    s.invert = query.get("invert") == "1"
    if query.get("board"):
        s.board_id = query["board"][:64]
        s.linked.add("board")
    if wrong:
        s.notices.append(
            f"The link's {', '.join(wrong)} cannot be read; the usual values are shown."
        )
    return s


def write_url(subject: Subject | None) -> None:
    """Put the state into the address bar, so that a link reopens what is on the screen."""
    s = session()
    query: dict[str, str] = {"run": s.run, "epoch": str(s.epoch)}
    if subject is not None:
        is_text = subject.run.config.is_text
        kind = s.text_input if is_text else s.image_input
        if is_text and kind == "text":
            query["text"] = s.text[:MAX_URL_TEXT]
            if s.target and subject.run.task == "sequence_to_sequence":
                query["target"] = s.target[:MAX_URL_TEXT]
        elif kind == "sample" and s.sample:
            query["sample"] = s.sample
        if s.invert and not is_text:
            query["invert"] = "1"
        query["view"] = s.view
        if subject.inspection.metrics is not None:
            if len(subject.inspection.metrics) > 1:
                query["layer"] = str(s.layer)
            if subject.inspection.metrics.shape[1] > 1:
                query["position"] = str(s.position)
            if s.block:
                query["block"] = f"{s.block[0]},{s.block[1]}"
        if s.attention_query >= 0:  # it was drawn
            numbers = (getattr(s, name) for name in _NUMBERS["attention"])
            query["attention"] = ",".join(map(str, numbers))
    fresh = Session()
    for name in LINKED:
        if getattr(s, name) != getattr(fresh, name):
            query[name] = _written(getattr(s, name))
    if s.device != "auto":
        query["device"] = s.device
    if s.board_id:
        query["board"] = s.board_id
    if st.query_params.to_dict() != query:
        st.query_params.from_dict(query)


def _integer(text: str) -> int:
    number = int(text)
    if not -360 <= number < 10_000_000:
        raise ValueError
    return number


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _read(text: str, default: Any) -> Any:
    """Read what :func:`_written` wrote, as a value of the default's type."""
    if isinstance(default, tuple):
        return tuple(_value(part) for part in text.split(",")) if text else ()
    if isinstance(default, bool):
        return text == "True"
    if isinstance(default, int):
        return _integer(text)
    if isinstance(default, float):
        number = float(text)
        if not abs(number) < 1e12:  # NaN, too
            raise ValueError
        return number
    return text


def _value(text: str) -> int | str:
    return _integer(text) if text.lstrip("-").isdigit() else text
