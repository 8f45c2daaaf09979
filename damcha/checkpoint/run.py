"""A trained run: open its folder, load the model of an epoch, prepare an input for it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from damcha.checkpoint.card import unit_of
from damcha.checkpoint.files import read_text, regular_file
from damcha.checkpoint.weights import (
    MAX_FILE_BYTES,
    check_fit,
    clean_names,
    load_strictly,
    read_header,
    read_weights,
)
from damcha.config import RunConfig
from damcha.data import images, text
from damcha.data.datasets import Split
from damcha.data.evaluation import EvaluationSet, check_known, evaluation_set
from damcha.data.pairs import one_pair, symbol_labels
from damcha.errors import CheckpointError, ConfigError, DamchaError, InputError
from damcha.model import ByteLM, TaskModel, build_model
from damcha.symbols import TOKENIZER, Bytes, Numbers, Tokenizer

MAX_CONFIG_BYTES = 1_000_000
MAX_CARD_BYTES = 1_000_000
MAX_METRICS_BYTES = 64_000_000
MAX_INPUT_BYTES = 20_000_000
MAX_PAIR_BYTES = 100_000
"""Of a source and a target that somebody writes, before they become symbols."""

MEANS = "mean-metric.safetensors"
DATA = "data"
"""A folder beside the runs: held-out data by name of the set, e.g. data/fashion_mnist."""
RESULTS = "results"
"""Another folder beside the runs: what `damcha reproduce` found."""
SNAPSHOT = re.compile(r"epoch-(\d{1,6})\.safetensors")
SAMPLE_SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff"),
    "text": (".txt",),
}

Device = Literal["auto", "cpu", "cuda", "mps"]
Source = str | Path | bytes | Image.Image | npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Example:
    """One input, as a model takes it and as a person can read it."""

    inputs: Tensor
    """[1, C, H, W] float in [−1, 1], or [1, L] int64 bytes; on the CPU."""
    labels: tuple[str, ...]
    """One a token: "r2 c3" for a patch (row and column, from 0), the printable byte for text."""
    seen: npt.NDArray[np.uint8] | tuple[str, ...]
    """What the model sees: uint8 [S, S, C], or the labels."""
    notes: tuple[str, ...]
    """A sentence for everything that was changed on the way."""
    digest: str
    """SHA-256 of the bytes of `inputs`."""
    name: str
    original: images.Picture | text.Passage
    path: Path | None = None
    """Where it was read from; None for bytes, arrays and typed text."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The options of :meth:`Run.prepare` that were not left at their defaults."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder whose settings have been read; weights are read by `load`."""

    path: Path
    config: RunConfig
    epochs: tuple[int, ...]
    """Epochs that can be loaded, ascending."""
    files: tuple[Path, ...]
    """The weights of each of `epochs`."""
    metrics: tuple[dict[str, Any], ...]
    """The lines of metrics.jsonl."""
    card: str
    """The text of README.md; empty where there is none."""
    samples: tuple[Path, ...]
    """Inputs that come with the run."""
    strays: tuple[str, ...]
    """Names in the folder that are not of a run."""
    notes: tuple[str, ...]
    """A sentence for everything that is missing or was left out."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def task(self) -> str:
        """What was trained: one of `damcha.config.TASKS`."""
        return self.config.task

    def load(self, epoch: int | None = None, device: Device = "auto") -> TaskModel:
        """Build the model with the weights at the end of an epoch (the last by default).

        Returns
        -------
        TaskModel
            In evaluation mode, in float32, without gradients, on the device.

        Raises
        ------
        CheckpointError
            If there is no such epoch, or its file is damaged, does not fit the configuration, or
            has non-finite weights. Other epochs are not affected.
        ConfigError
            If the device is not there.
        """
        epoch, path = self._snapshot(epoch)
        target = pick_device(device)
        claimed = read_header(path, self.path).metadata.get("epoch", str(epoch))
        if claimed != str(epoch):
            raise CheckpointError(
                f"{path.name} says that it holds epoch {claimed[:20]!r}, not {epoch}: "
                "it was renamed; give it its own name back"
            )
        state = clean_names(read_weights(path, self.path))
        what = f"epoch {epoch}"
        with torch.random.fork_rng(devices=[]):  # building draws initial values, soon replaced
            stored = sum(weight.numel() for weight in state.values())
            if _expected_weights(self.config) > 2 * stored + 10_000_000:
                # A small file whose config asks for a huge model is told so before memory is taken.
                # Not for every file: the meta device's first use takes seconds of imports.
                with torch.device("meta"):
                    check_fit(build_model(self.config), state, what)
            model = build_model(self.config)
        load_strictly(model, state, what)
        if isinstance(model, ByteLM):
            model.tokenizer = self.tokenizer
        return model.eval().requires_grad_(False).to(target)

    def weights_digest(self, epoch: int | None = None) -> str:
        """Return the SHA-256 of an epoch's weights file, in hexadecimal.

        Raises
        ------
        CheckpointError
            If there is no such epoch, or its file cannot be read.
        """
        path = self._snapshot(epoch)[1]
        with regular_file(path, MAX_FILE_BYTES, self.path).open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What the symbols of a run on text spell.

        Raises
        ------
        CheckpointError
            If they are subwords, and ``tokenizer.json`` is missing, damaged, or another's. An
            imported run may lack one: its symbols are numbers then.
        """
        data, path = self.config.data, self.path / TOKENIZER
        size, imported = data.vocabulary, data.first_symbol is not None
        if size == Bytes.size and not imported:
            return Bytes()
        if self.lacks_tokenizer:
            return Numbers(size)
        # Their library takes time to load, and few runs need it.
        from damcha.data.pieces import read_pieces
        from damcha.data.subwords import read_subwords

        try:
            regular_file(path, MAX_FILE_BYTES, self.path)
            found = read_pieces(path) if imported else read_subwords(path)
        except InputError as error:
            raise CheckpointError(str(error)) from None
        if found.size != size:
            raise CheckpointError(
                f"{TOKENIZER} has {found.size:,} symbols, not {size:,} as config.json says; put "
                "the right file back"
            )
        return found

    @property
    def lacks_tokenizer(self) -> bool:
        """Whether nobody knows what its symbols spell, so that they are numbers."""
        imported = self.config.data.first_symbol is not None
        return imported and not (self.path / TOKENIZER).exists()

    @property
    def unit(self) -> str:
        """What the run's losses are measured in."""
        return unit_of(self.config)

    def n_weights(self, epoch: int | None = None) -> int:
        """Return how many weights an epoch's file holds, a shared one counted once.

        Raises
        ------
        CheckpointError
            If there is no such epoch, or its file is damaged.
        """
        header = read_header(self._snapshot(epoch)[1], self.path)
        return sum(math.prod(shape) for shape in header.shapes.values())

    def stored_dtypes(self, epoch: int | None = None) -> tuple[str, ...]:
        """Return the dtypes of an epoch's weights on disk, e.g. ("F16",); `load` gives float32.

        Raises
        ------
        CheckpointError
            If there is no such epoch, or its file is damaged.
        """
        header = read_header(self._snapshot(epoch)[1], self.path)
        return tuple(sorted(set(header.dtypes.values())))

    def mean_metric(self, epoch: int | None = None) -> npt.NDArray[np.float32] | None:
        """Return the metric's mean over held-out inputs at the end of an epoch.

        Returns
        -------
        array or None
            [metrics, positions, d, d]; one metric where the stack shares it, else one a layer.
            None where the run keeps none (MHA, or a run of other making).

        Raises
        ------
        CheckpointError
            If there is no such epoch, or the file is damaged or does not fit the run.
        """
        epoch, _ = self._snapshot(epoch)
        path = self.path / MEANS
        if not path.exists():
            return None
        mean = read_weights(path, self.path).get(f"epoch-{epoch:04d}")
        if mean is None:
            return None
        d = self.config.model.d_model
        if mean.dim() != 4 or mean.shape[2:] != (d, d):
            raise CheckpointError(
                f"{MEANS} does not fit the configuration: the mean of epoch {epoch} has shape "
                f"{list(mean.shape)}, not [metrics, positions, {d}, {d}]"
            )
        if not mean.isfinite().all():
            raise CheckpointError(
                f"epoch {epoch} has a non-finite mean metric; choose another epoch"
            )
        found: npt.NDArray[np.float32] = mean.float().numpy()
        return found

    @property
    def data_folder(self) -> Path:
        """Where the held-out data of this run lie, if they came with it."""
        return self.path.parent / DATA / self.config.data.dataset

    def evaluation_set(
        self, root: str | Path | None = None, n: int = 512, split: Split = "test"
    ) -> EvaluationSet:
        """Open held-out examples of the data that the run was trained on.

        Parameters
        ----------
        root
            Where the data lie; by default data/SET beside the run, which ships with ours.
        n, split
            How many examples, spread evenly over which part.

        Raises
        ------
        InputError
            If the data are not there, or damaged.
        """
        data = self.config.data
        check_known(data)
        if root is None:
            root = self.data_folder
            if not root.is_dir():
                raise InputError(
                    f"run '{self.name}' has no held-out data at {DATA}/{data.dataset} beside it; "
                    "name the folder of its data"
                )
        tokenizer = self.tokenizer if self.task == "sequence_to_sequence" else None
        return evaluation_set(data, root, n, split, tokenizer)

    def prepare(
        self,
        source: Source,
        *,
        frame: int = 0,
        background: tuple[int, int, int] = (255, 255, 255),
        invert: bool = False,
        name: str | None = None,
    ) -> Example:
        """Turn a picture or a text into what this run's model takes.

        Parameters
        ----------
        source
            For a run on images: a path, the bytes of a file, a PIL image or an array. For a run on
            text: a str is the text itself; a Path or bytes is a UTF-8 file. For a run on pairs it
            is the source, or the source, a tab and its target.
        frame
            Which frame of an animation, from 0.
        background
            What transparent pixels are laid on (RGB).
        invert
            Swap light and dark: Fashion-MNIST models know light things on black.
        name
            What to call the source in messages; by default the file's name.

        Raises
        ------
        InputError
            If the source cannot be used.
        """
        if self.config.is_text:
            return self._prepare_text(source, name)
        data = self.config.data
        picture = images.read_image(source, frame=frame, background=background, name=name)
        seen, notes = images.fit_image(picture, data.image_size, data.channels, invert=invert)
        inputs = torch.from_numpy(seen.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        side = data.image_size // data.patch_size
        return Example(
            inputs=inputs,
            labels=tuple(f"r{row} c{column}" for row in range(side) for column in range(side)),
            seen=seen,
            notes=(*picture.notes, *notes),
            digest=_digest(inputs),
            name=picture.name,
            original=picture,
            path=Path(source) if isinstance(source, str | Path) else None,
            settings={
                option: value
                for option, value, default in (
                    ("frame", frame, 0),
                    ("background", tuple(background), (255, 255, 255)),
                    ("invert", invert, False),
                )
                if value != default
            },
        )

    def _prepare_text(self, source: Source, name: str | None) -> Example:
        if not isinstance(source, str | Path | bytes):
            raise InputError(
                f"this run reads text, not a {type(source).__name__}; give a str, a Path or bytes"
            )
        pairs, limit = self.task == "sequence_to_sequence", self.config.data.seq_len
        content = _read(source) if isinstance(source, Path) else source
        called = name or (source.name if isinstance(source, Path) else "text")
        in_bytes, spelled = self.config.symbol == "byte", self.tokenizer
        passage = text.read_text(
            content, limit if in_bytes else MAX_PAIR_BYTES, name=called,
            subwords=not isinstance(spelled, Bytes),
        )  # fmt: skip
        tokens, cut = passage.tokens.astype(np.int64), False
        if pairs:
            tokens, cut = one_pair(passage.text, spelled, limit)
        elif not in_bytes:
            symbols = spelled.encode(passage.text)
            if not symbols:
                raise InputError(f"{called}: its tokenizer finds no symbol in this text")
            tokens, cut = np.array(symbols[:limit], np.int64), len(symbols) > limit
        if not in_bytes:
            notes = passage.notes + (f"Cut to {limit} symbols.",) * cut
            passage = replace(passage, labels=self.labels(tokens), notes=notes)
        inputs = torch.from_numpy(tokens)[None]
        return Example(
            inputs=inputs,
            labels=passage.labels,
            seen=passage.labels,
            notes=passage.notes,
            digest=_digest(inputs),
            name=passage.name,
            original=passage,
            path=source if isinstance(source, Path) else None,
        )

    def labels(self, symbols: npt.NDArray[np.int64]) -> tuple[str, ...]:
        """Return one label for each symbol of a run on texts."""
        return symbol_labels(self.tokenizer, symbols)

    def _snapshot(self, epoch: int | None) -> tuple[int, Path]:
        epoch = self.epochs[-1] if epoch is None else epoch
        if epoch not in self.epochs:
            raise CheckpointError(
                f"run '{self.name}' has no weights of epoch {epoch}; "
                f"it has {', '.join(map(str, self.epochs))}"
            )
        return epoch, self.files[self.epochs.index(epoch)]


def open_run(path: str | Path) -> Run:
    """Open a run folder; the format is described in `damcha.checkpoint`.

    Raises
    ------
    CheckpointError
        If it is not a folder, its config.json is missing or not valid, or it has no weights at
        all. Lesser damage is told in `Run.notes`.
    """
    path = Path(path)
    try:
        name = path.resolve().name
        names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        raise CheckpointError(f"there is no run folder '{path}'") from None
    except NotADirectoryError:
        raise CheckpointError(f"'{path}' is a file; a run is a folder") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the run folder {str(path)!r} cannot be opened: {error}") from None
    if "config.json" not in names:
        raise CheckpointError(f"'{path}' is not a run folder: it has no config.json")
    try:
        config = RunConfig.from_json(read_text(path / "config.json", MAX_CONFIG_BYTES))
    except ConfigError as error:
        raise CheckpointError(f"config.json of run '{name}': {error}") from None

    notes: list[str] = []
    snapshots = _snapshots(path, names, notes)
    if not snapshots:
        raise CheckpointError(
            f"run '{name}' has no weights: {'; '.join(notes) or 'no epoch-NNNN.safetensors'}"
        )
    metrics = _metrics(path, names, notes)
    gone = sorted(
        {line["epoch"] for line in metrics if type(line.get("epoch")) is int}
        & set(config.train.snapshots) - set(snapshots)
    )
    if gone:
        notes.append(f"the weights of epochs {', '.join(map(str, gone[:20]))} are missing")
    known = {"config.json", "metrics.jsonl", "README.md", "samples", "resume.pt", MEANS, TOKENIZER}
    known |= {file.name for file in snapshots.values()}
    return Run(
        path=path,
        config=config,
        epochs=tuple(sorted(snapshots)),
        files=tuple(snapshots[epoch] for epoch in sorted(snapshots)),
        metrics=metrics,
        card=_card(path, names, notes),
        samples=_samples(path, config, notes),
        strays=tuple(name for name in names if name not in known),
        notes=tuple(notes),
    )


def list_runs(folder: str | Path) -> tuple[list[Run], list[tuple[str, str]]]:
    """Open every run in a folder, by name; those that cannot be opened come with the reason.

    Raises
    ------
    CheckpointError
        If there is no such folder.
    """
    folder = Path(folder)
    try:
        paths = sorted(
            entry
            for entry in folder.iterdir()
            if entry.is_dir()
            and not entry.name.startswith(".")
            and entry.name not in (DATA, RESULTS)
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the folder {str(folder)!r} cannot be listed: {error}") from None
    runs: list[Run] = []
    broken: list[tuple[str, str]] = []
    for path in paths:
        try:
            if not path.resolve().is_relative_to(folder.resolve()):
                raise CheckpointError(
                    f"'{path.name}' is a link out of {folder} and is not followed"
                )
            runs.append(open_run(path))
        except DamchaError as error:
            broken.append((path.name, str(error)))
    return runs, broken


def pick_device(device: str = "auto") -> torch.device:
    """Return the device for a name; "auto" is cuda, else mps, else cpu.

    Raises
    ------
    ConfigError
        If the name is unknown or this machine has no such device.
    """
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if device == "auto":
        device = next(name for name, present in there.items() if present)
    if device not in there:
        raise ConfigError(f"device: '{device}' is not one of auto, cpu, cuda, mps")
    if not there[device]:
        raise ConfigError(f"device: this machine has no '{device}'; use auto")
    return torch.device(device)


def _expected_weights(config: RunConfig) -> int:
    """About how many weights a model has, by formula: the stack, positions and both ends."""
    d, data = config.model.d_model, config.data
    symbols = data.vocabulary + 3
    ends = d * (config.seq_len + 2 * symbols + 3 * data.patch_dim + 2 * d + data.n_classes)
    return config.model.parameter_bound() + ends


def _snapshots(path: Path, names: list[str], notes: list[str]) -> dict[int, Path]:
    """Epoch → file, for the files that are safe to open; the others get a note."""
    found: dict[int, Path] = {}
    for name in names:
        match = SNAPSHOT.fullmatch(name)
        if not match:
            continue
        epoch = int(match[1])
        try:
            regular_file(path / name, MAX_FILE_BYTES)
        except CheckpointError as error:
            notes.append(str(error))
            continue
        if epoch in found:
            notes.append(
                f"{found[epoch].name} and {name} are both epoch {epoch}; the first is used"
            )
            continue
        found[epoch] = path / name
    return found


def _metrics(path: Path, names: list[str], notes: list[str]) -> tuple[dict[str, Any], ...]:
    if "metrics.jsonl" not in names:
        notes.append("metrics.jsonl is missing: there are no curves")
        return ()
    try:
        lines = read_text(path / "metrics.jsonl", MAX_METRICS_BYTES).splitlines()
    except CheckpointError as error:
        notes.append(str(error))
        return ()
    records = []
    bad = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # a run that is being written has half a last line
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            bad.append(number)
    if bad:
        shown = ", ".join(map(str, bad[:5]))
        notes.append(f"metrics.jsonl: {len(bad)} lines cannot be read and are left out: {shown}")
    return tuple(records)


def _card(path: Path, names: list[str], notes: list[str]) -> str:
    if "README.md" not in names:
        notes.append("README.md is missing: the run has no card")
        return ""
    try:
        return read_text(path / "README.md", MAX_CARD_BYTES)
    except CheckpointError as error:
        notes.append(str(error))
        return ""


def _samples(path: Path, config: RunConfig, notes: list[str]) -> tuple[Path, ...]:
    suffixes = SAMPLE_SUFFIXES["text" if config.is_text else "image"]
    try:
        entries = sorted((path / "samples").iterdir())
    except OSError:
        return ()
    found = []
    for entry in entries:
        if entry.suffix.lower() not in suffixes or entry.name.startswith("."):
            continue
        try:
            regular_file(entry, MAX_INPUT_BYTES, path)
            found.append(entry)
        except CheckpointError as error:
            notes.append(f"samples: {error}")
    return tuple(found)


def _read(path: Path) -> bytes:
    try:
        # Resolved, because a user's own file may be a link to anywhere; a pipe is still refused.
        return regular_file(path.resolve(), MAX_INPUT_BYTES).read_bytes()
    except (CheckpointError, OSError, ValueError, RuntimeError) as error:
        raise InputError(f"the text file cannot be read: {error}") from None


def _digest(inputs: Tensor) -> str:
    return hashlib.sha256(inputs.numpy().tobytes()).hexdigest()
