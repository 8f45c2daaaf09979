"""Variants of one training compared over seeds: run folders → one result that can be kept.

All numbers are validation losses after the same number of steps. Runs of one seed saw the same
examples in the same order, so differences are paired by seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from damcha.analysis.runs import cost_of
from damcha.checkpoint.files import read_text
from damcha.checkpoint.run import MAX_CONFIG_BYTES, MAX_METRICS_BYTES
from damcha.config import RunConfig
from damcha.errors import InputError

Estimate = tuple[float, float, float]
"""Lower end of a 95 % interval, mean, upper end; the ends are NaN for a single seed."""


@dataclass(frozen=True)
class Trained:
    """One run as far as it went."""

    variant: str
    config: RunConfig
    losses: dict[int, float]
    """Step → validation loss."""


@dataclass(frozen=True)
class Variant:
    """One variant over its seeds."""

    name: str
    settings: dict[str, Any]
    """Settings in which it differs from the study's first variant."""
    parameters: int
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    curves: tuple[tuple[float, ...], ...]
    """Validation loss of each seed at each step."""
    loss: Estimate
    differences: dict[str, Estimate]
    """Baseline → this variant's loss minus its, over the seeds that both have."""


@dataclass(frozen=True)
class Study:
    """Variants after the same number of steps."""

    step: int
    schedule: int
    """Steps for which the learning rate's schedule was made; the runs may have stopped earlier."""
    variants: tuple[Variant, ...]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean with Student's 95 % interval."""
    x = np.asarray(values, np.float64)
    if len(x) < 2:
        return (float("nan"), float(x.mean()), float("nan"))
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return (float(x.mean() - half), float(x.mean()), float(x.mean() + half))


def read_trained(variant: str, folder: str | Path) -> Trained:
    """Read a run folder's settings and curve; the run need not be complete."""
    folder = Path(folder)
    config = RunConfig.from_json(read_text(folder / "config.json", MAX_CONFIG_BYTES))
    lines = read_text(folder / "metrics.jsonl", MAX_METRICS_BYTES).splitlines()
    records = [json.loads(line) for line in lines]
    return Trained(variant, config, {r["step"]: float(r["valid_loss"]) for r in records})


def study(runs: Sequence[Trained], step: int, baselines: Sequence[str]) -> Study:
    """Compare variants at a step; the first run's variant is what settings are told against.

    Raises
    ------
    InputError
        If a run did not reach the step, or runs were not trained alike.
    """
    if not runs:
        raise InputError("runs: there is nothing to compare; give at least one")
    alike = {"seed": 0, "generator_lr": 1.0, "snapshots": ()}  # what a variant may change
    first, base = runs[0].config, runs[0].config.flat()
    for run in runs:
        if step not in run.losses:
            raise InputError(
                f"step: a run of '{run.variant}' has no validation loss at step {step}; it was "
                f"taken at {sorted(run.losses)[:60]}"
            )
        train = (c.train.model_copy(update=alike) for c in (run.config, first))
        if run.config.data != first.data or len({t.model_dump_json() for t in train}) > 1:
            raise InputError(
                f"runs: '{run.variant}' had other data or another budget than '{runs[0].variant}'; "
                "compare runs that were trained alike"
            )
    last = {(run.variant, run.config.train.seed): run for run in runs}
    found = []
    for name in dict.fromkeys(run.variant for run in runs):
        own = {seed: run for (variant, seed), run in sorted(last.items()) if variant == name}
        config = next(iter(own.values())).config
        steps = [s for s in sorted(next(iter(own.values())).losses) if s <= step]
        differences = {}
        for other in baselines:
            seeds = [seed for seed in own if (other, seed) in last]
            if seeds and other != name:
                pairs = [own[s].losses[step] - last[other, s].losses[step] for s in seeds]
                differences[other] = estimate(pairs)
        found.append(Variant(
            name=name,
            settings={
                field: value for field, value in config.flat().items()
                if value != base[field] and field not in ("name", "seed", "snapshots")
            },
            parameters=cost_of(config).parameters,
            seeds=tuple(own),
            steps=tuple(steps),
            curves=tuple(tuple(run.losses[s] for s in steps) for run in own.values()),
            loss=estimate([run.losses[step] for run in own.values()]),
            differences=differences,
        ))  # fmt: skip
    return Study(step, first.train.epochs * first.train.steps_per_epoch, tuple(found))
