"""The only cached functions: runs, models, results, attention maps.

Keys are our own digests and file times, never Streamlit's sampling of large arrays. Models are
shared by all sessions (captures go through `damcha.tap`, so they cannot mix); what came from a
user's input belongs to the user's session.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from app import warm
from app.state import Given

if TYPE_CHECKING:
    import numpy as np

    from damcha.analysis.ablation import Ablation
    from damcha.analysis.atlas import Atlas
    from damcha.analysis.contributions import Contributions
    from damcha.analysis.geometry import Geometry
    from damcha.analysis.probes import Probe
    from damcha.analysis.runs import Cost
    from damcha.checkpoint.run import Run
    from damcha.data.evaluation import EvaluationSet
    from damcha.figures.spec import Figure
    from damcha.gallery import Snapshot, Subject
    from damcha.gallery.epochs import History
    from damcha.model import TaskModel

Broken = tuple[tuple[str, str], ...]
Stamp = tuple[tuple[str, int, int], ...]


def run_folders() -> list[Path]:
    """Folders whose runs the app offers: DAMCHA_RUNS, or checkpoints/ and runs/ of the project."""
    if listed := os.environ.get("DAMCHA_RUNS"):
        return [Path(part) for part in listed.split(os.pathsep) if part]
    home = Path(__file__).resolve().parent.parent
    return [home / name for name in ("checkpoints", "runs") if (home / name).is_dir()]


def runs() -> tuple[dict[str, Run], Broken]:
    """Return the runs by name, and the folders that cannot be opened with the reason."""
    found: dict[str, Run] = {}
    broken: Broken = ()
    for folder in run_folders():
        good, bad = _runs_in(str(folder), _stamp(folder))
        for run in good:
            found[f"{folder.name}/{run.name}" if run.name in found else run.name] = run
        broken += bad
    return found, broken


@st.cache_resource(max_entries=8, show_spinner=False)
def _runs_in(folder: str, stamp: Stamp) -> tuple[tuple[Run, ...], Broken]:
    from damcha.checkpoint.run import list_runs
    from damcha.errors import CheckpointError

    try:
        good, bad = list_runs(folder)
    except CheckpointError as error:
        return (), ((folder, str(error)),)
    return tuple(good), tuple(bad)


def _stamp(folder: Path) -> Stamp:
    """Names, sizes and times of all files of all runs: what makes a listing stale."""
    found: list[tuple[str, int, int]] = []
    try:
        for entry in os.scandir(folder):
            if entry.is_dir() and not entry.name.startswith("."):
                found += (
                    (f"{entry.name}/{file.name}", info.st_size, info.st_mtime_ns)
                    for file in os.scandir(entry.path)
                    for info in [file.stat(follow_symlinks=False)]
                )
    except OSError:
        pass  # a run that is being moved: list_runs will say what is wrong
    return tuple(sorted(found))


def _run_key(run: Run) -> tuple[str, Stamp]:
    return str(run.path), tuple((file.name, *_times(file)) for file in run.files)


def _times(file: Path) -> tuple[int, int]:
    try:
        info = file.stat()
    except OSError:
        return 0, 0
    return info.st_size, info.st_mtime_ns


def _figure_key(figure: Figure) -> tuple[Any, ...]:
    import numpy as np

    digest = hashlib.sha256()
    for name, array in sorted(figure.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    words = (figure.name, figure.title, figure.caption, figure.venue, figure.column)
    return *words, repr(figure.provenance), digest.hexdigest()


_HASHES: dict[str | type[Any], Callable[[Any], Any]] = {
    "damcha.checkpoint.run.Run": _run_key,
    "damcha.gallery.subject.Subject": lambda subject: (
        _run_key(subject.run),
        subject.epoch,
        subject.example.digest,
    ),
    "damcha.figures.spec.Figure": _figure_key,
    Given: attrgetter("digest"),
}


@st.cache_resource(max_entries=32, show_spinner=False, hash_funcs=_HASHES)
def model(run: Run, epoch: int, device: str) -> TaskModel:
    """Return the model of an epoch, shared by all sessions and never changed."""
    return run.load(epoch, device)  # type: ignore[arg-type]


def subject(run: Run, epoch: int, device: str, given: Given, invert: bool, frame: int) -> Subject:
    """Return an input's metric and answer in one snapshot of a run.

    Samples belong to everybody; what came from a user belongs to the user's session.
    """
    keep = _sample if given.kind == "sample" else _upload
    return keep(run, epoch, device, given, invert, frame)


def _subject(run: Run, epoch: int, device: str, given: Given, invert: bool, frame: int) -> Subject:
    from damcha.gallery import open_subject

    if given.kind == "text":
        example = run.prepare(given.content.decode("utf-8", "surrogatepass"), name=given.name)
    else:
        example = run.prepare(given.content, name=given.name, invert=invert, frame=frame)
    return open_subject(run, epoch, example, model=model(run, epoch, device))


_sample = st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=_HASHES)(_subject)
_upload = st.cache_resource(
    max_entries=24, scope="session", show_spinner=False, hash_funcs=_HASHES
)(_subject)


def evaluation_root(run: Run) -> Path | None:
    """Return where held-out data of a run lie: beside it, or beside any run that the app offers."""
    for folder in (run.path.parent, *run_folders()):
        root = folder / "data" / run.config.data.dataset
        if root.is_dir():
            return root
    return None


@st.cache_resource(max_entries=8, show_spinner=False, hash_funcs=_HASHES)
def _evaluation_set(run: Run, root: str, n: int, stamp: Stamp) -> EvaluationSet:
    return run.evaluation_set(root, n)


def evaluation_set(run: Run, n: int) -> EvaluationSet:
    """Return held-out examples for a run.

    Raises
    ------
    InputError
        If there are none.
    """
    root = evaluation_root(run)
    if root is None:
        return run.evaluation_set(n=n)  # says what is missing
    return _evaluation_set(run, str(root), n, _stamp(root.parent))


def snapshot(run: Run, epoch: int, device: str) -> Snapshot:
    """Return the model of an epoch with its origin."""
    from damcha.gallery import Snapshot

    return Snapshot(run, epoch, run.weights_digest(epoch), model(run, epoch, device))


@st.cache_resource(max_entries=16, scope="session", show_spinner=False, hash_funcs=_HASHES)
def ablation(subject: Subject, names: tuple[str, ...], edits: tuple[Any, ...]) -> Ablation:
    """Return what the model answers to an input under interventions, and under edits by hand."""
    from damcha import gallery

    return gallery.ablation.ablate(subject, names, factors(subject.n_heads, edits))


@st.cache_resource(max_entries=48, scope="session", show_spinner=False, hash_funcs=_HASHES)
def contributions(
    subject: Subject, target: Any, index: int, method: Any, baseline: Any
) -> Contributions:
    """Return what the metric contributes to an answer."""
    from damcha.gallery.contributions import explain

    return explain(subject, target, index, method, baseline)


@st.cache_resource(max_entries=16, scope="session", show_spinner=False, hash_funcs=_HASHES)
def swap(first: Subject, second: Subject, other_layer: int, position: int) -> Ablation:
    """Return what one input's model answers with the other's metric."""
    from damcha.gallery.comparison import swap

    return swap(first, second, other_layer, position)


@st.cache_data(max_entries=16, show_spinner=False)
def embedded(key: tuple[Any, ...], method: Any, _features: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the places of inputs on a map; `key` tells weights, data and features apart."""
    from damcha.analysis.atlas import embed

    return embed(_features, method)


@st.cache_data(max_entries=16, show_spinner=False)
def probed(key: tuple[Any, ...], feature: Any, _atlas: Atlas) -> tuple[tuple[Probe, ...], str]:
    """Return how well classes can be read from metrics."""
    from damcha.analysis.probes import probes

    return probes(_atlas, feature)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=_HASHES)
def cost(run: Run) -> Cost | None:
    """Return the parameters and multiply-adds of a run's model, whatever its weights are.

    None where there is no such model, which opening the run explains.
    """
    from damcha.analysis.runs import cost_of
    from damcha.errors import DamchaError

    try:
        return cost_of(run.config)
    except DamchaError:
        return None


def factors(n_heads: int, edits: tuple[tuple[int, int, float], ...]) -> np.ndarray | None:
    """Return the factor of every block after edits by hand; None without any."""
    import numpy as np

    if not edits:
        return None
    table = np.ones((n_heads, n_heads), np.float32)
    for a, b, factor in edits:
        table[a, slice(None) if b < 0 else b] *= factor
    return table


@st.cache_resource(max_entries=48, scope="session", show_spinner=False, hash_funcs=_HASHES)
def subject_figure(kind: str, subject: Subject) -> Figure:
    """Return a figure of the gallery that takes an input and nothing else."""
    from damcha import gallery

    return gallery.KINDS[kind].draw(subject)


_results: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
"""Results of long analyses by their content: what one session waited for serves all."""
_results_lock = threading.Lock()
MOST_RESULTS = 32


def result(
    key: tuple[Any, ...], steps: Callable[[], Iterator[Any]], report: Callable[[Any], None]
) -> Any:
    """Return the result of a long analysis, run with reports of its progress unless it is known.

    `key` must tell weights, data and settings apart. A run that is interrupted leaves nothing.
    """
    from damcha.analysis.progress import finished

    with _results_lock:
        if key in _results:
            _results.move_to_end(key)
            return _results[key]
    found = finished(steps(), report)
    with _results_lock:
        _results[key] = found
        while len(_results) > MOST_RESULTS:
            _results.popitem(last=False)
    return found


def known(key: tuple[Any, ...]) -> bool:
    """Say whether :func:`result` would answer at once."""
    with _results_lock:
        return key in _results


def companions(run: Run) -> list[Run]:
    """Return the runs that take the same inputs to the same end and have a metric of one width."""
    from damcha.gallery import has_metric

    mine = run.config
    return [
        other
        for other in runs()[0].values()
        if other.task == run.task
        and other.config.data == mine.data
        and has_metric(other)
        and other.config.model.d_model == mine.model.d_model
        and other.config.model.n_heads == mine.model.n_heads
    ]


def takers(run: Run) -> list[Run]:
    """Return the runs with a metric that take the same kind of input."""
    from damcha.gallery import has_metric

    text = run.config.is_text
    return [
        other for other in runs()[0].values() if other.config.is_text == text and has_metric(other)
    ]


def history(run: Run, device: str, given: Given, invert: bool, frame: int) -> History:
    """Return an input in all snapshots of a run; each snapshot is cached by itself."""
    from damcha.gallery.epochs import open_history

    def one(epoch: int) -> Subject:
        return subject(run, epoch, device, given, invert, frame)

    return open_history(run, open_one=one)


@st.cache_resource(max_entries=48, scope="session", show_spinner=False, hash_funcs=_HASHES)
def geometry(subject: Subject, layer: int, position: int) -> Geometry:
    """Return the numbers of one metric."""
    from damcha import gallery

    return gallery.geometry(subject, layer, position)


@st.cache_resource(max_entries=24, scope="session", show_spinner=False, hash_funcs=_HASHES)
def attention_maps(subject: Subject, device: str, layer: int) -> np.ndarray:
    """Return one layer's attention probabilities [h, L, L]."""
    from damcha.analysis.inspection import attention_maps

    return attention_maps(model(subject.run, subject.epoch, device), subject.example, layer)


@st.cache_resource(max_entries=48, scope="session", show_spinner=False, hash_funcs=_HASHES)
def drawn(figure: Figure, dark: bool, room: int) -> Any:
    """Return the plotly figure; most of those on a page have not changed since its last run."""
    from damcha.figures.screen import to_plotly

    return to_plotly(figure, dark, room)


@st.cache_data(max_entries=48, scope="session", show_spinner=False, hash_funcs=_HASHES)
def printed(figure: Figure) -> bytes:
    """Return the figure as it is on paper, as a PNG of 150 pixels an inch."""
    from damcha.figures.paper import render

    return render(figure, "png", 150)


@st.cache_resource(max_entries=48, scope="session", show_spinner=False, hash_funcs=_HASHES)
def canvas(frames: tuple[Figure, ...], labels: tuple[str, ...], dark: bool, room: int) -> bytes:
    """Return figures of one layout as the bytes of one canvas."""
    from damcha.figures.canvas import to_canvas

    return to_canvas(frames, room, dark, labels, warm.plotly_address())


@st.cache_resource(max_entries=64, show_spinner=False)
def sample(path: str, time: int) -> Given:
    """Return a sample that came with a run."""
    return Given.of("sample", Path(path).name, Path(path).read_bytes())


@st.cache_data(max_entries=64, scope="session", show_spinner=False, hash_funcs=_HASHES)
def n_frames(given: Given) -> int:
    """Return how many frames a picture has, without decoding it; 1 where that is unknown."""
    import io

    from PIL import Image

    try:
        with Image.open(io.BytesIO(given.content), formats=("GIF", "PNG", "WEBP", "TIFF")) as image:
            return int(getattr(image, "n_frames", 1))
    except Exception:  # whatever is wrong with it, the reader of pictures says it
        return 1


@st.cache_data(max_entries=32, scope="session", show_spinner=False, hash_funcs=_HASHES)
def preview(subject: Subject) -> np.ndarray:
    """Return the picture as the user gave it, upright, at most 320 pixels a side."""
    import numpy as np
    from PIL import Image

    pixels = subject.example.original.pixels  # type: ignore[union-attr]  # of a picture only
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((320, 320))
    return np.asarray(image)


@st.cache_data(max_entries=64, show_spinner=False)
def thumbnail(path: str, time: int) -> str:
    """Return a small picture of a sample as a data URL; empty where it cannot be read."""
    import base64
    import io

    from PIL import Image

    from damcha.data.images import fit_image, read_image
    from damcha.errors import InputError

    try:
        pixels, _ = fit_image(read_image(Path(path)), 72, 3)
    except InputError:
        return ""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
