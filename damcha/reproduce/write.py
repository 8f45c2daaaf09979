"""What an experiment leaves in its folder: results.json, table.tex, table.md, figures, a card."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from damcha import __version__
from damcha.checkpoint import atomic_write, pick_device
from damcha.figures import paper, sidecar
from damcha.figures.table import to_latex, to_markdown
from damcha.reproduce.experiment import Desk, Outcome

FORMAT = "damcha-reproduction"


def write(desk: Desk, outcome: Outcome) -> Path:
    """Write everything; results.json comes last, so a folder that has it is whole."""
    folder = desk.folder
    files = []
    for name, figure in outcome.figures.items():
        drawn = replace(figure, provenance=replace(figure.provenance, command=desk.command))
        for suffix in ("pdf", "png"):
            paper.save(drawn, folder / f"{name}.{suffix}")
        atomic_write(folder / f"{name}.npz", sidecar.to_npz(drawn))
        atomic_write(folder / f"{name}.json", sidecar.to_json(drawn))
        files.append(name)
    if outcome.table is not None:
        latex = to_latex(outcome.table).replace(r"f\_$\theta$", r"$f_\theta$")
        atomic_write(folder / "table.tex", latex)
        atomic_write(folder / "table.md", to_markdown(outcome.table))
    facts = _facts(desk, outcome, files)
    atomic_write(folder / "README.md", card(desk, outcome, facts))
    path = folder / "results.json"
    atomic_write(path, json.dumps(facts, indent=2, allow_nan=False) + "\n")
    return path


def _facts(desk: Desk, outcome: Outcome, files: list[str]) -> dict[str, Any]:
    experiment = desk.experiment
    return {
        "format": FORMAT,
        "format_version": 1,
        "name": experiment.name,
        "title": experiment.title,
        "small": desk.small,
        "command": desk.command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": str(pick_device(desk.device)),
        "versions": {
            "damcha": __version__, "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__,
        },
        "data": list(_data(desk)),
        "runs": [
            {
                "system": one.system,
                "run": one.snapshot.run.name,
                "shipped": one.shipped,
                "epoch": one.snapshot.epoch,
                "weights": one.snapshot.run.n_weights(),
                "weights_digest": one.snapshot.weights_digest,
                "seed": one.snapshot.run.config.train.seed,
                "settings": one.snapshot.run.config.model_dump(mode="json"),
            }
            for one in desk.made
        ],
        "values": _plain(outcome.values),
        "table": None
        if outcome.table is None
        else {
            "columns": list(outcome.table.columns),
            "rows": _plain(outcome.table.rows),
            "caption": outcome.table.caption,
            "digits": outcome.table.digits,
        },
        "paper": _plain(outcome.paper),
        "figures": files,
    }  # fmt: skip


def _data(desk: Desk) -> Iterator[dict[str, Any]]:
    configs = {one.snapshot.run.config.data.dataset: one for one in desk.made}
    for one in configs.values():
        data = desk.data(one.snapshot.run.config.data)
        yield {
            "name": data.name, "digest": data.digest, "n": len(data),
            "source": data.data.source, "licence": data.data.licence,
        }  # fmt: skip


def _plain(value: Any) -> Any:
    """As JSON has it; what is not a number becomes null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def card(desk: Desk, outcome: Outcome, facts: dict[str, Any]) -> str:
    """Return the experiment's card as Markdown."""
    experiment = desk.experiment
    size = "small: reduced sizes, on data at hand" if desk.small else "the paper's size"
    lines = [
        f"# {experiment.name}: {experiment.title}", "", experiment.what, "",
        f"- Size: {size}.",
        f"- Made with: `{desk.command}`",
        f"- On {facts['device']}, {facts['date']}; "
        + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()) + ".",
    ]  # fmt: skip
    for data in facts["data"]:
        lines.append(
            f"- Data: {data['name']} (SHA-256 {data['digest'][:16]}…). {data['source']} "
            f"Licence: {data['licence']}"
        )
    if desk.made:
        lines += ["", "## Runs", "", "| system | run | from | seed | weights | budget |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
    for one in desk.made:
        run, train = one.snapshot.run, one.snapshot.run.config.train
        origin = "ships with damcha" if one.shipped else "trained by this command"
        lines.append(
            f"| {one.system} | {run.name} | {origin} | {train.seed} | {run.n_weights():,} "
            f"| {train.epochs} epochs of {train.steps_per_epoch} steps of {train.batch_size} |"
        )
    if outcome.table is not None:
        lines += ["", "## Results", "", to_markdown(outcome.table).rstrip()]
    if outcome.figures:
        lines += ["", "## Figures", ""]
        for name, figure in outcome.figures.items():
            lines += [f"![{figure.title}]({name}.png)", "", figure.caption, ""]
    lines += ["", "## The paper's numbers", ""]
    if outcome.paper:
        lines += [f"- {name}: {_shown(value)}" for name, value in outcome.paper.items()]
        lines.append("- All others were not at hand; a dash stands for them.")
    else:
        lines.append("They were not at hand; a dash stands for them.")
    caveats = [*experiment.caveats, *outcome.notes]
    if desk.small:
        caveats.insert(0, "Small models, short training, other data than the paper's: trends may "
                          "be compared, numbers not.")  # fmt: skip
    if desk.made and max(len(desk.runs(one.system)) for one in desk.made) == 1:
        caveats.append(
            "One seed each: the intervals are over examples and know nothing of what another seed "
            "would give."
        )
    lines += ["", "## Caveats", "", *[f"- {sentence}" for sentence in caveats]]
    text = "\n".join(lines) + "\n"
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_shown(part)}" for name, part in value.items())
    if isinstance(value, tuple | list):
        return " / ".join(_shown(part) for part in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
