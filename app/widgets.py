"""What pages are made of: the sidebar's pickers, a figure with its exports, guarded parts."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from app import boards, cache, components, state
from app.state import Given
from damcha.errors import DamchaError

if TYPE_CHECKING:
    from pathlib import Path

    from streamlit.runtime.uploaded_file_manager import UploadedFile

    from damcha.checkpoint.run import Run
    from damcha.figures.spec import Figure
    from damcha.figures.table import Table
    from damcha.gallery import Subject

log = logging.getLogger("damcha.app")

TASKS = {
    "image_autoregression": "predicts each patch of a picture from the earlier ones",
    "image_reconstruction": "fills in hidden rows of patches",
    "language_modelling": "predicts each token of a text from the earlier ones",
    "sequence_to_sequence": "reads a source text and writes its target",
    "image_classification": "names the class of a picture",
}
INPUTS: dict[bool, tuple[state.Kind, ...]] = {
    False: ("sample", "upload", "camera"),
    True: ("sample", "text", "upload"),
}
INPUT_NAMES = {"sample": "Sample", "upload": "Upload", "camera": "Camera", "text": "Write"}
FORMATS = {
    "pdf": "application/pdf",
    "svg": "image/svg+xml",
    "png": "image/png",
    "npz": "application/octet-stream",
    "csv": "text/csv",
    "json": "application/json",
}
PLOTLY = {
    "displaylogo": False,
    "displayModeBar": False,  # double click resets a zoom; exports have their own menu
    "doubleClick": "reset",
    "scrollZoom": False,  # a 3D camera is told by its two angles
}
MOST_SCENES = 4
"""Live 3D scenes of a chart: browsers keep few. More landscapes are shown as on paper."""

_CSS = """
.stMainBlockContainer { padding: 4.25rem 2.5rem 4rem; max-width: 1500px; }
[data-testid="stSidebarHeader"] { height: 2.25rem; margin-bottom: 0; padding-bottom: 0; }
.stMainBlockContainer h4 { padding-bottom: 0.25rem; }
.stMainBlockContainer [data-testid="stCaptionContainer"] p { text-wrap: pretty; }
"""
GRID = np.array([86, 180, 233], np.uint8)


def plain(text: str) -> str:
    """Escape what Streamlit would read as Markdown: names and texts come from users."""
    line = " ".join(text.split())
    return "".join(f"\\{c}" if c in r"\`*_{}[]()<>#+-.!|~:$@&=/^" else c for c in line)


def style() -> None:
    """Use a wide page's room: Streamlit's own margins are made for reading text."""
    st.html(f"<style>{_CSS}</style>")


def dark() -> bool:
    """Say whether this browser shows the dark theme."""
    return getattr(getattr(st.context, "theme", None), "type", None) == "dark"


@contextlib.contextmanager
def guard(what: str) -> Iterator[None]:
    """Turn an error in a part of the page into one sentence there and one line in the log."""
    try:
        yield
    except DamchaError as error:
        tell(str(error))
    except Exception:
        log.exception("%s failed", what)
        st.error(f"{what} cannot be shown because of a fault of this program; its log says more.")


def tell(sentence: str) -> None:
    """Show what is wrong, and log it."""
    log.warning("%s", " ".join(sentence.split()))
    if sentence.split()[0].rstrip(":,;").isalpha():  # else a file's name, which stays as it is
        sentence = sentence[0].upper() + sentence[1:]
    st.error(plain(sentence), icon=":material/error:")


# The sidebar --------------------------------------------------------------------------------------


def pick_run(runs: Mapping[str, Run], broken: cache.Broken) -> Run:
    """Draw the picker of runs and return the chosen one."""
    names = sorted(runs)
    first = next((name for name in ("fashion-damcha", *names) if name in runs), names[0])
    name = st.selectbox("Run", names, key=state.bind("run", names, first))
    run = runs[name]
    st.caption(f"{run.config.model.attention.upper()}, {TASKS[run.task]}")
    if broken:
        with st.expander(f"{len(broken)} not usable"):
            for folder, reason in broken:
                st.caption(f"**{plain(folder)}**: {plain(reason)}")
    return run


def pick_epoch(run: Run) -> int:
    """Draw the picker of epochs and return the chosen one."""
    help_ = "Weights at the end of this epoch, counted from 0."
    key = state.bind("epoch", run.epochs, run.epochs[-1])
    if len(run.epochs) == 1:
        st.markdown(f"Epoch **{run.epochs[0]}**, the only one of this run", help=help_)
        return run.epochs[0]
    return int(st.select_slider("Epoch", run.epochs, key=key, help=help_))


def pick_layer(run: Run) -> int:
    """Draw the picker of the layer whose metric is shown, where each layer has its own."""
    model = run.config.model
    if model.attention == "damcha":
        if not model.metric.differs_by_layer:
            return 0
    else:
        from damcha.attention import (
            ATTENTIONS,  # it waits for torch, which only such runs need here
        )

        kind = ATTENTIONS.get(model.attention)
        if kind is None or not kind.LENS:  # opening the run says what is wrong with it
            return 0
    layers = range(model.n_layers)
    help_ = "This run has one metric per layer."
    return int(
        st.segmented_control("Metric of layer", layers, key=state.bind("layer", layers), help=help_)
        or 0
    )


def pick_device() -> str:
    """Draw the picker of devices and return the chosen name."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    names = ["auto", *(name for name, present in there.items() if present), "cpu"]
    best = names[1]
    return str(
        st.selectbox(
            "Device",
            names,
            key=state.bind("device", names),
            format_func=lambda name: f"auto ({best})" if name == "auto" else name,
            help="What the model runs on.",
        )
    )


def pick_input(run: Run) -> Given | None:
    """Draw the picker of inputs; return the chosen one, or None while there is none yet."""
    s = state.session()
    is_text = run.config.is_text
    kinds = [kind for kind in INPUTS[is_text] if kind != "sample" or run.samples]
    field = "text_input" if is_text else "image_input"
    st.segmented_control(
        "Input",
        kinds,
        key=state.bind(field, kinds),
        format_func=lambda kind: INPUT_NAMES[kind],
        width="stretch",
    )
    kind = getattr(s, field)
    if kind == "sample":
        return _pick_sample(run, is_text)
    if kind == "text":
        return _write(run)
    if kind == "camera":
        _take(st.camera_input("Take a picture", key="camera"), "camera", "photo")
        given = s.photo
    elif is_text:
        _take(st.file_uploader("Text file (UTF-8)", key="document"), "upload", "document")
        given = s.document
    else:
        _take(st.file_uploader("Picture file", key="picture"), "upload", "upload")
        pasted = components.paste(key="paste")
        if pasted is not None:
            s.upload = Given.of("upload", "pasted picture", pasted)
        given = s.upload
    if given is None:
        st.caption("Nothing yet: the last result stays.")
    elif not is_text:
        _picture_options(given)
    return given


def _take(file: UploadedFile | None, kind: state.Kind, field: str) -> None:
    """Keep a new file; while one is replaced, and after it is removed, the old one stays."""
    s = state.session()
    if file is not None and file.file_id != s.file_id:
        s.file_id = file.file_id
        setattr(s, field, Given.of(kind, file.name, file.getvalue()))


def _picture_options(given: Given) -> None:
    frames = cache.n_frames(given)
    if frames > 1:
        st.number_input(
            f"Frame, 0 to {frames - 1}", 0, frames - 1, key=state.bind("frame", range(frames))
        )
    else:
        state.assign("frame", 0)
    st.checkbox(
        "Swap light and dark",
        key=state.bind("invert"),
        help="Fashion-MNIST models know light things on black.",
    )


def _pick_sample(run: Run, is_text: bool) -> Given | None:
    s = state.session()
    paths = {path.name: path for path in run.samples}
    names = list(paths)
    if is_text:
        st.selectbox(
            "Sample",
            names,
            key=state.bind("sample", names),
            format_func=_readable,
            label_visibility="collapsed",
        )
    else:
        state.settle("sample", names)
        items = [(name, _readable(name), cache.thumbnail(*at(paths[name]))) for name in names]
        choose = functools.partial(state.choose_sample, "gallery", tuple(names))
        components.gallery(items, s.sample, "gallery", choose)
        st.caption(_readable(s.sample))
    return cache.sample(*at(paths[s.sample]))


def _write(run: Run) -> Given | None:
    s, pairs = state.session(), run.task == "sequence_to_sequence"
    st.text_area(
        "Source" if pairs else "Text",
        key=state.bind("text"),
        height=120,
        placeholder="Numbers of symbols, such as 5 17 8"
        if run.lacks_tokenizer
        else "Type or paste a sentence",
        help="Read as UTF-8; press Ctrl+Enter or ⌘+Enter, or click elsewhere.",
    )
    if pairs:
        st.text_input(
            "Target",
            key=state.bind("target"),
            placeholder="Left to the model",
            help="What the source should become: losses and contributions are of it. Where there "
            "is none, what the run's last snapshot writes stands for it.",
        )
    if not s.text:
        st.caption("Nothing yet: the last result stays.")
        return None
    text = f"{s.text}\t{s.target}" if pairs and s.target else s.text
    return Given.of("text", "text", text.encode("utf-8", "surrogatepass"))


def continued(run: Run) -> str:
    """Say what the text is that a model of texts wrote by itself."""
    if run.task == "sequence_to_sequence":
        return "The target that the model writes"
    return f"The likeliest {run.config.symbol}s from here on, one after the other"


def _readable(name: str) -> str:
    return name.rsplit(".", 1)[0].replace("_", " ")


def at(path: Path) -> tuple[str, int]:
    return str(path), path.stat().st_mtime_ns


# Figures ------------------------------------------------------------------------------------------


def show(
    figure: Figure,
    key: str,
    room: int,
    *,
    words: str = "",
    on_click: Callable[[str], None] | None = None,
) -> None:
    """Draw a figure `room` pixels wide at most, with words and exports below.

    `on_click` is called with the chart's key when a cell or a point was clicked (see
    `state.clicked`).
    """
    from damcha.figures.canvas import drawable
    from damcha.figures.spec import Surface

    told = None if on_click is None else functools.partial(on_click, key)
    if drawable(figure):
        components.figure(cache.canvas((figure,), (), dark(), room), key, told)
    elif sum(isinstance(panel.mark, Surface) for panel in figure.panels) > MOST_SCENES:
        picture(figure)
    else:
        selects: dict[str, Any] = {}
        if told is not None:
            selects = {"on_select": told, "selection_mode": "points"}
        st.plotly_chart(
            cache.drawn(figure, dark(), room),
            theme=None,
            key=key,
            config=PLOTLY,
            width=room,
            alt=figure.caption,
            **selects,
        )
    _below(figure, key, words)


def show_frames(
    frames: Sequence[Figure], labels: Sequence[str], key: str, room: int, *, words: str = ""
) -> None:
    """Draw figures of one layout and one scale as an animation with a slider, e.g. over epochs.

    The exports are of the last frame.
    """
    components.figure(cache.canvas(tuple(frames), tuple(labels), dark(), room), key)
    _below(frames[-1], key, words)


def long(key: tuple[Any, ...], steps: Callable[[], Iterator[Any]], button: str) -> Any:
    """Return the result of a long analysis, or None until it is asked for.

    Known results come at once. Otherwise a button starts it, under a progress bar; a click on
    Cancel, or on anything else, stops it.
    """
    slot = st.empty()
    if not cache.known(key) and not slot.button(button, type="primary", key=f"start-{button}"):
        return None
    with slot.container():
        bar = st.progress(0.0)
        if not cache.known(key):
            st.button("Cancel", key=f"cancel-{button}")

        def report(step: Any) -> None:
            words = f"{step.done:,} of {step.total:,} {step.what}"
            bar.progress(min(1.0, step.done / max(1, step.total)), words)

        found = cache.result(key, steps, report)
    slot.empty()
    return found


def table(made: Table, key: str) -> None:
    """Show a table with its files for papers."""
    from damcha.figures import table as write

    st.markdown(write.to_markdown(replace(made, caption="")))
    st.caption(plain(made.caption))
    table_files(made, key)


def table_files(made: Table, key: str) -> None:
    """Offer the files of a table."""
    from damcha.figures import table as write

    with st.container(horizontal=True):
        for name, content, suffix in (
            ("LaTeX", write.to_latex(made), "tex"),
            ("CSV", write.to_csv(made), "csv"),
            ("Markdown", write.to_markdown(made), "md"),
        ):
            st.download_button(
                name, content, f"{key}.{suffix}", key=f"{key}-{suffix}", on_click="ignore"
            )


def picture(figure: Figure) -> None:
    """Show a figure without a menu, as it will be on paper."""
    st.image(cache.printed(figure), width="content", output_format="PNG")


def _below(figure: Figure, key: str, words: str) -> None:
    left, right = st.columns([4, 1])
    left.caption(plain(words or figure.caption))
    with right:
        _export(figure, key)


def pick_page(left: Any, right: Any, key: str) -> None:
    """Draw the pickers of the page that exports are sized for, each in a place of its own."""
    from damcha.figures.style import VENUES

    s, names, columns = state.session(), list(VENUES), ["single", "double"]
    s.venue = left.selectbox(
        "Page of", names, names.index(s.venue), key=f"venue-{key}",
        format_func=lambda name: name.upper() if len(name) < 5 else name.title(),
    )  # fmt: skip
    s.column = right.selectbox("Column", columns, columns.index(s.column), key=f"column-{key}")


def _export(figure: Figure, key: str) -> None:
    s = state.session()
    menu = st.popover(
        "Export", key=f"export-{key}", on_change="rerun", type="tertiary", width="stretch"
    )
    if not menu.open:
        return
    with menu:
        pick_page(*st.columns(2), key)
        sized = figure.sized(s.venue, s.column)  # type: ignore[arg-type]
        with st.container(horizontal=True):
            for format_, mime in FORMATS.items():
                st.download_button(
                    format_.upper(),
                    functools.partial(export, sized, format_),
                    f"{figure.name}.{format_}",
                    mime,
                    key=f"{format_}-{key}",
                    on_click="ignore",
                )
        if st.button("Add to the figure board", key=f"collect-{key}", width="stretch"):
            st.caption(boards.collect(figure))
        st.caption(
            "NPZ has every array, CSV the drawn numbers, JSON where they come from and the command "
            "that makes the figure again."
        )


def export(figure: Figure, format_: str) -> bytes:
    """Return a figure as the bytes of a file in one of `FORMATS`."""
    from damcha.figures import paper, sidecar

    if format_ in ("npz", "csv", "json"):
        write = {"npz": sidecar.to_npz, "csv": sidecar.to_csv, "json": sidecar.to_json}[format_]
        return write(figure)
    return paper.render(figure, format_)  # type: ignore[arg-type]


def no_runs(broken: cache.Broken) -> None:
    """Say that there is nothing to open, and what to do."""
    st.error(
        "There is no run to open. Train one with `damcha train fashion`, or name a folder of "
        "runs in DAMCHA_RUNS."
    )
    for folder, reason in broken:
        st.caption(f"**{plain(folder)}**: {plain(reason)}")


def anything(runs: Iterable[Run], device: str) -> tuple[Subject | None, Given | None]:
    """Return the first result that there is, so that a page is never empty, and its input."""
    for run in runs:
        for epoch in reversed(run.epochs):
            with contextlib.suppress(DamchaError):
                for path in run.samples[:1]:
                    given = cache.sample(*at(path))
                    return cache.subject(run, epoch, device, given, False, 0), given
    return None, None


def no_metric(subject: Subject) -> None:
    """Say why a page about the metric has nothing to show for a run."""
    kind = subject.run.config.model.attention.upper()
    st.info(
        f"Run {plain(subject.run.name)} uses {kind}: its heads share no cross-head metric, so "
        "there is nothing to show here. Choose another run in the sidebar.",
        icon=":material/info:",
    )


def seen(subject: Subject) -> None:
    """Show the input as given and as the model sees it, and say what was changed between."""
    example = subject.example
    if isinstance(example.seen, tuple):
        word = {"byte": "bytes, one token each", "symbol": "symbols"}[subject.run.config.symbol]
        st.caption(f"What the model sees: {len(example.seen)} {word}")
    else:
        data = subject.run.config.data
        pictures = [
            ("As given", with_grid(cache.preview(subject), 0)),
            (
                f"As seen, in {data.patch_size}×{data.patch_size} patches",
                with_grid(example.seen, data.patch_size),
            ),
        ]
        completed = getattr(subject.inspection.answer, "completed", None)
        if completed is not None:
            pictures.append(("Lower half completed", with_grid(completed, 0)))
        for column, (words, pixels) in zip(st.columns(3), pictures, strict=False):
            column.image(pixels, words, width="stretch")
    for note in example.notes:
        st.caption(plain(note))


def served(subject: Subject) -> tuple[str, ...]:
    """Name the queries of each position: patches by their place, bytes by their number."""
    found = subject.inspection
    if not subject.run.config.is_text or not found.stride:
        return found.position_labels
    n, stride = len(found.tokens), found.stride
    word = subject.run.config.symbol
    return tuple(f"{word}s {k} to {min(k + stride, n) - 1}" for k in range(0, n, stride))


def with_grid(pixels: np.ndarray, patch: int, side: int = 224) -> np.ndarray:
    """Enlarge a small picture without smoothing, and rule its patches (0 for none)."""
    k = max(1, side // len(pixels))
    large = pixels.repeat(k, axis=0).repeat(k, axis=1)
    if patch and k > 2:
        large = large.repeat(4 - large.shape[2], axis=2) if large.shape[2] == 1 else large.copy()
        for line in range(patch * k, len(large), patch * k):
            # Half way to a middle blue: seen on black and on white.
            large[line] = large[line] // 2 + GRID // 2
            large[:, line] = large[:, line] // 2 + GRID // 2
    return large
