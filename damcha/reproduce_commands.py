"""`damcha reproduce NAME`: a table or figure of the paper, from training to the card."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from damcha.errors import ConfigError

PATH = click.Path(path_type=Path)


@click.command("reproduce")
@click.argument("name")
@click.option("--small", is_flag=True, help="Sizes for a CPU, on data at hand.")
@click.option("--out", type=PATH, help="Folder of the results [results/NAME].")
@click.option(
    "--data",
    "places",
    multiple=True,
    metavar="[SET=]DIR",
    help="Folder of the data, or of one set; the held-out parts that ship need none.",
)
@click.option("--seeds", type=click.IntRange(1, 100), help="Runs of each system [3; small: 1].")
@click.option("--n", type=click.IntRange(1), help="Held-out examples [10,000; small: 512].")
@click.option("--set", "pairs", multiple=True, metavar="FIELD=VALUE", help="Change a setting.")
@click.option(
    "--checkpoints",
    type=PATH,
    default=Path("checkpoints"),
    show_default=True,
    help="Runs to take instead of training where they are exactly those wanted.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, mps.")
def reproduce(
    name: str,
    small: bool,
    out: Path | None,
    places: tuple[str, ...],
    seeds: int | None,
    n: int | None,
    pairs: tuple[str, ...],
    checkpoints: Path,
    device: Any,
) -> None:
    """Reproduce NAME, table1 … table8 or figure3 … figure13, or go on where it was stopped.

    Writes results.json, table.tex, table.md, figures and a card (README.md) into a folder.
    """
    from tqdm import tqdm

    from damcha import reproduce as library
    from damcha.analysis.progress import Progress

    experiment = library.find(name)
    folder = out or Path("results") / name
    data = dict(_place(text) for text in places)
    # The card is published: of a folder's place it tells the last part only.
    words = ["damcha", "reproduce", name, *["--small"] * small]
    words += [w for k, p in data.items() for w in ("--data", f"{k}={p.name}" if k else p.name)]
    words += ["--seeds", str(seeds)] * (seeds is not None) + ["--n", str(n)] * (n is not None)
    words += [word for pair in pairs for word in ("--set", pair)]
    steps = library.reproduce(
        experiment, folder, small=small, seeds=seeds, n=n, settings=_settings(pairs), data=data,
        checkpoints=checkpoints, device=device, command=shlex.join(words),
    )  # fmt: skip
    desk = None
    try:
        with tqdm(leave=False) as bar:
            for step in steps:
                if isinstance(step, Progress):
                    bar.total = step.total
                    bar.set_description(step.what, refresh=False)
                    bar.n = step.done
                    bar.refresh()
                elif isinstance(step, library.Desk):
                    desk = step
                else:
                    assert desk is not None  # it comes first
                    library.write(desk, step)
    except KeyboardInterrupt:
        click.echo(f"stopped; the same command continues {folder}", err=True)
        sys.exit(130)
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        click.echo(str(path))


def _place(text: str) -> tuple[str, Path]:
    """SET=DIR, or DIR for all sets."""
    name, equals, place = text.partition("=")
    return (name, Path(place)) if equals else ("", Path(text))


def _settings(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: write it as field=value, e.g. --set epochs=2")
        found[name.strip()] = value.strip()
    return found
