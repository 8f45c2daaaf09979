"""What an experiment is, and the desk at which one is done: its runs, its data, kept evaluations.

    Experiment.plan(small, seeds) → Systems → trained or taken from the shipped runs → Desk
    Experiment.measure(Desk)      → Outcome: values, a table, figures

Everything that takes long is kept in the experiment's folder and found again by its content (the
weights' and the data's digests), so the same command goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from damcha import gallery
from damcha.analysis import ablation, evaluation
from damcha.analysis.fid import trained_network
from damcha.analysis.progress import Progress, relayed
from damcha.checkpoint import atomic_write, list_runs, open_run
from damcha.checkpoint.run import DATA, Device, Run
from damcha.config import DataConfig, RunConfig
from damcha.data.evaluation import EvaluationSet, evaluation_set
from damcha.errors import InputError
from damcha.figures.spec import Figure
from damcha.figures.table import Table
from damcha.gallery import Snapshot

T = TypeVar("T")
Arrays = dict[str, NDArray[np.float64]]
Steps = Generator[Progress, None, T]
"""A long work that is done within another one: ``result = yield from …``."""


@dataclass(frozen=True)
class System:
    """What a row of a table is about: one configuration, trained from a seed or several."""

    label: str
    seeds: tuple[RunConfig, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an experiment found."""

    values: Mapping[str, Any]
    """All numbers, fit for JSON."""
    table: Table | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By the name of their files."""
    paper: Mapping[str, Any] = field(default_factory=dict)
    """The paper's own numbers, where they are at hand."""
    notes: tuple[str, ...] = ()
    """Sentences for the card that depend on what was found."""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper."""

    name: str
    title: str
    what: str
    """What is done, for the card."""
    plan: Callable[[bool, int], Sequence[System]]
    """Whether small, and how many seeds → what has to be trained."""
    measure: Callable[[Desk], Iterator[Progress | Outcome]]
    n: tuple[int, int] = (512, 10_000)
    """Held-out examples: small, at the paper's size."""
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Made:
    """A run of a system, and where it is from."""

    system: str
    snapshot: Snapshot
    shipped: bool


@dataclass(frozen=True, eq=False)
class Desk:
    """Where an experiment is done."""

    experiment: Experiment
    folder: Path
    small: bool
    n: int
    device: Device
    made: tuple[Made, ...]
    roots: Mapping[str, Path]
    """Data set → folder."""
    command: str
    networks: dict[str, str] = field(default_factory=dict)
    """Data set → the network whose features FID was measured with."""

    def runs(self, system: str) -> tuple[Snapshot, ...]:
        """The runs of a system, a seed each."""
        return tuple(one.snapshot for one in self.made if one.system == system)

    def data(self, config: DataConfig) -> EvaluationSet:
        """The held-out examples of a data set."""
        return evaluation_set(config, self.roots[config.dataset], self.n)

    def scores(self, snapshot: Snapshot) -> Steps[Arrays]:
        """Loss of each held-out example, and of a classifier top1 and top5, [n] each."""
        data = self.data(snapshot.run.config.data)
        key = ("scores", snapshot.run.name, snapshot.weights_digest, data.digest)

        def steps() -> Iterator[Progress | Arrays]:
            for step in evaluation.scores(snapshot.model, data):
                if isinstance(step, Progress):
                    yield Progress(step.done, step.total, f"{snapshot.run.name}, {step.what}")
                else:
                    loss, *others = step
                    yield {"loss": step[loss], **{name: step[name] for name in others}}

        return (yield from self.kept(key, steps))

    def fids(self, snapshot: Snapshot) -> Steps[Arrays]:
        """FID and FID@Top-50 of the predictions, [1] each, by a small network (analysis/fid.py).

        It learns from the training part where that is at hand, and is kept for all systems.
        """
        config = snapshot.run.config.data
        data = self.data(config)
        network = yield from relayed(trained_network(data, config, "test", self.folder))
        key = ("fid", snapshot.run.name, snapshot.weights_digest, data.digest, network.digest)

        def steps() -> Iterator[Progress | Arrays]:
            made = yield from relayed(evaluation.pictures(snapshot.model, data))
            found = yield from relayed(evaluation.fid(made, network))
            yield {"fid": np.array([found.fid]), "fid_top": np.array([found.fid_top])}

        self.networks[config.dataset] = network.name
        return (yield from self.kept(key, steps))

    def ablations(self, snapshot: Snapshot, names: Sequence[str]) -> Steps[Arrays]:
        """Loss of each held-out example under each intervention, by the intervention's title."""
        data = self.data(snapshot.run.config.data)
        key = ("ablations", snapshot.run.name, snapshot.weights_digest, data.digest, *names)

        def steps() -> Iterator[Progress | Arrays]:
            edits = gallery.ablation.edits(snapshot, names)
            for step in ablation.evaluate(snapshot.model, data, edits):
                if isinstance(step, Progress):
                    yield Progress(step.done, step.total, f"{snapshot.run.name}, parts")
                else:
                    yield dict(zip(step.names, step.loss, strict=True))

        return (yield from self.kept(key, steps))

    def kept(
        self, key: Sequence[str], steps: Callable[[], Iterator[Progress | Arrays]]
    ) -> Steps[Arrays]:
        """The arrays of a long work, from the folder where they are known already."""
        digest = hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()
        path = self.folder / "evaluations" / f"{key[1]}-{digest[:16]}.npz"
        if path.exists():
            with np.load(path, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        found: Arrays = yield from relayed(steps())
        path.parent.mkdir(exist_ok=True)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **found)
        atomic_write(path, buffer.getvalue())
        return found


# ---------------------------------------------------------------- runs and data


def reproduce(
    experiment: Experiment,
    folder: str | Path,
    *,
    small: bool = False,
    seeds: int | None = None,
    n: int | None = None,
    settings: Mapping[str, Any] | None = None,
    data: Mapping[str, Path] | None = None,
    checkpoints: str | Path = "checkpoints",
    device: Device = "auto",
    command: str = "",
) -> Iterator[Progress | Desk | Outcome]:
    """Do an experiment: train what is missing, measure; yields Progress, the Desk, the Outcome.

    Parameters
    ----------
    folder
        Where everything goes and from where it continues.
    small
        The sizes that a CPU can do, on data at hand.
    seeds
        Runs of each system; 1 when small, else 3.
    n
        Held-out examples; the experiment's own number by default.
    settings
        Changes to every configuration, by field.
    data
        Data set → its folder; "" for all that are not named.
    checkpoints
        Runs that are taken instead of training where they have exactly the configuration wanted;
        the data beside them serve for evaluation.

    Raises
    ------
    InputError
        If data are missing.
    ConfigError
        If a folder holds another run, as :func:`damcha.training.train`.
    """
    from damcha.training import (
        train,
    )  # late: it imports accelerate, which reading results needs not

    folder, shelf, given = Path(folder), Path(checkpoints), dict(data or {})
    seeds = seeds or (1 if small else 3)
    plan = [
        System(one.label, tuple(config.override(dict(settings or {})) for config in one.seeds))
        for one in experiment.plan(small, seeds)
    ]
    shipped = list_runs(shelf)[0] if shelf.is_dir() else []
    wanted = [(one.label, config, _same(config, shipped)) for one in plan for config in one.seeds]
    roots: dict[str, Path] = {}
    for name in dict.fromkeys(config.data.dataset for _, config, _ in wanted):
        own = [config for _, config, run in wanted if config.data.dataset == name and run is None]
        roots[name] = _root(experiment.name, name, given, shelf, len(own))
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for label, config, ready in wanted:
        run = ready
        if run is None:
            place = folder / "runs" / config.name
            place.parent.mkdir(exist_ok=True)
            for now in train(
                config, place, roots[config.data.dataset], command=command,
                device="cpu" if device == "cpu" else "auto",
            ):  # fmt: skip
                yield Progress(now.step, now.n_steps, f"training {config.name}, {now.loss:.4f}")
            run = open_run(place)
        made.append(Made(label, gallery.open_snapshot(run, None, device), ready is not None))
    examples = n or experiment.n[0 if small else 1]
    desk = Desk(experiment, folder, small, examples, device, tuple(made), roots, command)
    yield desk
    yield from experiment.measure(desk)


def _same(config: RunConfig, shipped: Sequence[Run]) -> Run | None:
    """A complete run that has this configuration, whatever its name."""
    for run in shipped:
        named = run.config.override({"name": config.name})
        if named == config and run.epochs[-1] == config.train.epochs - 1:
            return run
    return None


def _root(name: str, dataset: str, given: Mapping[str, Path], shelf: Path, training: int) -> Path:
    """The folder of a data set."""
    root = given.get(dataset, given.get(""))
    if root is None and not training and (shelf / DATA / dataset).is_dir():
        root = shelf / DATA / dataset  # the held-out part ships
    if root is None:
        why = f"trains {training} runs on" if training else "is measured on"
        raise InputError(
            f"{name} {why} {dataset}; name the folder of its data: --data {dataset}=DIR"
        )
    if not root.exists():
        raise InputError(f"{root}: no such folder; {name} needs the data of {dataset} there")
    return root
