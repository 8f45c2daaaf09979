"""The ``damcha`` command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from damcha.errors import ConfigError, DamchaError, InputError

if TYPE_CHECKING:  # torch is imported by the commands that need it
    from damcha.training import Progress


class _Group(click.Group):
    """Shows our own errors, and the system's, as one line; a bug keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DamchaError as error:
            click.echo(f"damcha: {error}", err=True)
            sys.exit(2)
        except OSError as error:  # a full disk, a file without permission
            if error.strerror is None:
                raise
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"damcha: {where}{error.strerror}", err=True)
            sys.exit(2)


@click.group(cls=_Group)
@click.version_option(package_name="damcha")
def main() -> None:
    """Train DAMCHA models and look at their cross-head metrics."""


def _settings(pairs: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: write it as field=value, e.g. --set d_model=128")
        settings[name.strip()] = value.strip()
    return settings


@main.command()
@click.argument("preset")
@click.option("--set", "pairs", multiple=True, metavar="FIELD=VALUE", help="Change a setting.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder of the data.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder [runs/NAME].")
@click.option("--cpu", is_flag=True, help="Train on the CPU even if there is a GPU.")
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Folder for TensorBoard logs.")
def train(
    preset: str,
    pairs: tuple[str, ...],
    data: Path,
    out: Path | None,
    cpu: bool,
    tensorboard: Path | None,
) -> None:
    """Train PRESET, or continue it where it was stopped.

    Several processes, on GPUs or the CPU, share each batch under `torchrun --nproc-per-node N -m
    damcha.cli train …` or `accelerate launch --multi_gpu --num_processes N -m damcha.cli train …`.
    (With its own option --cpu, accelerate launch starts one process only.)
    """
    from damcha.presets import PRESETS, SHIPPED
    from damcha.training import train as run_training

    settings: dict[str, str] = {}
    if preset in SHIPPED:
        base, settings = SHIPPED[preset]
        settings = {"name": preset, **settings}
    elif preset in PRESETS:
        base = preset
    else:
        names = ", ".join(sorted({*PRESETS, *SHIPPED}))
        raise ConfigError(f"{preset}: no such preset; choose from {names}")
    config = PRESETS[base].override({**settings, **_settings(pairs)})
    folder = out or Path("runs") / config.name
    # The card is published: of the data's place it tells the last part only.
    words = ["damcha", "train", preset, "--data", data.resolve().name, *["--cpu"] * cpu]
    command = shlex.join(words + [word for pair in pairs for word in ("--set", pair)])
    progress = run_training(
        config, folder, data, command=command, device="cpu" if cpu else "auto",
        tensorboard=tensorboard,
    )  # fmt: skip
    if os.environ.get("RANK", "0") != "0":  # set by torchrun and accelerate: one process speaks
        for _ in progress:
            pass
        return
    try:
        trained = _show(progress)
    except KeyboardInterrupt:
        click.echo(
            f"stopped; the same command continues {folder} after its last finished epoch", err=True
        )
        sys.exit(130)
    click.echo(f"{folder} is complete" + ("" if trained else ": nothing left to train"))


def _show(progress: Iterator[Progress]) -> bool:
    """Show training as it goes: loss, throughput, time left. Return whether there was any."""
    from tqdm import tqdm

    bar: tqdm[Any] | None = None
    for now in progress:
        if bar is None:
            bar = tqdm(total=now.n_steps, initial=now.step, unit="step", smoothing=0.05)
        bar.update(now.step - bar.n)
        state = bar.format_dict
        rate = state["rate"] or (bar.n - bar.initial) / max(state["elapsed"], 1e-9)
        speed = f", {rate * now.tokens:,.0f} tokens/s" if rate else ""
        bar.set_postfix_str(f"loss {now.loss:.4f}{speed}")
        if now.record is not None:
            shown = ", ".join(f"{k} {v:.4f}" for k, v in now.record.items() if "_loss" in k)
            bar.write(f"epoch {now.record['epoch']}: {shown}")
    if bar is not None:
        bar.close()
    return bar is not None


@main.command()
@click.argument("folder", default="checkpoints", type=click.Path(path_type=Path))
def runs(folder: Path) -> None:
    """List the runs in FOLDER with their results, and those that cannot be opened with why."""
    from damcha.checkpoint import list_runs

    found, broken = list_runs(folder)
    click.echo(f"{'run':<20} {'weights':>10}  {'epochs kept':<22} {'last valid':>10}  unit")
    for run in found:
        weights = run.n_weights()
        epochs = ", ".join(map(str, run.epochs))
        last = run.metrics[-1].get("valid_loss") if run.metrics else None
        shown = f"{last:.4f}" if isinstance(last, float) else "-"
        click.echo(f"{run.name:<20} {weights:>10,}  {epochs:<22} {shown:>10}  {run.unit}")
    for name, reason in broken:
        click.echo(f"{name}: {reason}", err=True)


def _integers(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """Read A,B or R,G,B, as the option's metavar says."""
    if value is None:
        return None
    form = str(option.metavar)
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != len(form.split(",")):
        example = ",".join("0123"[: len(form.split(","))])
        raise ConfigError(
            f"--{option.name} {value}: write it as {form}, e.g. --{option.name} {example}"
        )
    return numbers


@main.command()
@click.argument("kind")
@click.option("--run", "run_path", required=True, type=click.Path(path_type=Path))
@click.option("--epoch", type=int, help="Epoch [the last].")
@click.option("--input", "source", type=click.Path(path_type=Path), help="Image or text file.")
@click.option("--text", help="The text itself, for a run on text.")
@click.option("--frame", default=0, show_default=True, help="Which frame of an animation.")
@click.option("--invert", is_flag=True, help="Swap light and dark.")
@click.option(
    "--background",
    metavar="R,G,B",
    callback=_integers,
    default="255,255,255",
    show_default=True,
    help="What transparent pixels are laid on.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A .pdf, .svg, .png.")
@click.option("--view", help="metric: full, head_metrics, symmetric, antisymmetric, diagonal, …")
@click.option("--layer", type=int, help="Layer, where the stack does not share its metric.")
@click.option("--position", type=int, help="Which refresh of a causal metric [the last].")
@click.option("--block", metavar="A,B", callback=_integers, help="Block (A, B) alone.")
@click.option("--head", type=int)
@click.option("--query", type=int)
@click.option("--venue", default="icml", show_default=True, help="Page: neurips, icml, acl, …")
@click.option("--column", type=click.Choice(["single", "double"]), default="single")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, mps.")
def figure(
    kind: str,
    run_path: Path,
    epoch: int | None,
    source: Path | None,
    text: str | None,
    frame: int,
    invert: bool,
    background: tuple[int, int, int],
    out: Path,
    venue: str,
    column: Any,
    device: Any,
    **options: Any,
) -> None:
    """Draw KIND for an input, with its numbers (.npz) and provenance (.json) beside it.

    KIND is metric, spectrum, answer, surprise, attention, attention-over-input or curves.
    """
    from damcha import gallery
    from damcha.checkpoint import atomic_write, open_run
    from damcha.figures import paper, sidecar

    if kind not in (*gallery.KINDS, "curves"):
        names = ", ".join(sorted((*gallery.KINDS, "curves")))
        raise InputError(f"{kind}: no such figure; choose from {names}")
    run = open_run(run_path)
    if kind == "curves":
        drawn = gallery.curves(run)
    else:
        if (source is None) == (text is None):
            raise InputError("give the input as --input FILE, or as --text TEXT")
        if text is not None and run.task != "language_modelling":
            raise InputError(f"--text: run '{run.name}' takes pictures; give one as --input FILE")
        model = run.load(epoch, device)
        given = source if text is None else text
        subject = gallery.open_subject(
            run, epoch, given,  # type: ignore[arg-type]
            model=model, frame=frame, invert=invert, background=background,
        )  # fmt: skip
        for note in subject.example.notes:
            click.echo(f"note: {note}", err=True)
        drawn = gallery.draw(kind, subject, model, options)
    drawn = drawn.sized(venue, column)
    paper.save(drawn, out)
    atomic_write(out.with_suffix(".npz"), sidecar.to_npz(drawn))
    atomic_write(out.with_suffix(".json"), sidecar.to_json(drawn))
    click.echo(f"{out}, {out.with_suffix('.npz').name}, {out.with_suffix('.json').name}")


@main.command()
@click.option("--repeats", default=7, show_default=True, type=click.IntRange(3, 1000))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 1024))
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--out", type=click.Path(path_type=Path), help="Write the numbers as JSON, too.")
def bench(repeats: int, threads: int, device: str, out: Path | None) -> None:
    """Compare DAMCHA with fused MHA on the same work: time, memory, agreement of paths."""
    import json
    from dataclasses import asdict

    import torch

    from damcha.analysis.efficiency import Report, layer_benchmark
    from damcha.checkpoint import atomic_write, pick_device

    torch.set_num_threads(threads)
    report: Report | None = None
    for step in layer_benchmark(repeats=repeats, device=str(pick_device(device))):
        if isinstance(step, Report):
            report = step
        else:
            click.echo(f"… {step}", err=True)
    assert report is not None  # the last thing that is yielded
    click.echo(", ".join(f"{name} {value}" for name, value in report.settings.items()))
    click.echo("\ntime as a ratio: median (quartiles)")
    for row in report.comparisons:
        low, middle, high = row.ratio
        kept = (
            ""
            if row.limit is None
            else f"  at most {row.limit:.2f}: " + ("yes" if row.holds else "NO")
        )
        click.echo(f"  {row.name} / {row.baseline}: {middle:.2f} ({low:.2f} to {high:.2f}){kept}")
    click.echo("\npeak memory, MiB: forward without gradients; forward with gradients")
    for use in report.memory:
        click.echo(f"  {use.name}: {use.forward:.1f}; {use.training:.1f}")
    click.echo("\nlargest differences")
    for name, gap in report.differences.items():
        click.echo(f"  {name}: {gap:.1e}")
    if out is not None:
        atomic_write(out, json.dumps(asdict(report), indent=2) + "\n")


if __name__ == "__main__":
    main()
