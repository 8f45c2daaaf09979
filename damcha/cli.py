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
from damcha.reproduce_commands import reproduce

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
        except click.UsageError as error:
            click.echo(f"damcha: {error.format_message()}", err=True)
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


main.add_command(reproduce)


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
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the data, or hf: (the datasets library).",
)
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


@main.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Run folder to make.")
@click.option(
    "--old-metrics",
    type=click.Path(path_type=Path),
    help="Of a version-1 file, which cannot be run: write M of every layer to a .npz.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Of a model of text: the tokenizer.json of its tokenizer, which is not in the file.",
)
@click.option(
    "--first-symbol",
    type=click.IntRange(0),
    help="The symbol that begins every text, where the tokenizer does not tell.",
)
def import_(
    path: Path,
    out: Path | None,
    old_metrics: Path | None,
    tokenizer: Path | None,
    first_symbol: int | None,
) -> None:
    """Turn a checkpoint of the DAMCHA authors' own code into a run.

    PATH is one .pt file, or a folder of checkpoint_epoch_*.pt, which becomes one run.
    """
    from damcha.checkpoint import authors

    if old_metrics is not None:
        old = authors.write_old_metrics(path, old_metrics)
        click.echo(f"{old_metrics}: M of {len(old.metrics)} layers, {old.metrics.shape[1]} wide")
        return
    if out is None:
        raise ConfigError("--out: name the run folder to make, e.g. --out runs/theirs")
    run = authors.import_run(path, out, tokenizer, first_symbol)
    model, metric = run.config.model, run.config.model.metric
    kind = model.attention
    if kind == "damcha":
        kind += f" ({metric.generator}, sharing {metric.sharing})"
    epochs = ", ".join(map(str, run.epochs))
    click.echo(
        f"{out}: {kind}, {model.n_layers} layers of width {model.d_model}, "
        f"{run.n_weights():,} weights, epochs {epochs}"
    )
    click.echo(run.card.partition("## Translated or left out\n\n")[2], nl=False)


class _Figures(click.Group):
    """One command for each kind of figure; kinds and their options are the gallery's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from damcha import gallery

        return sorted(gallery.KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from damcha import figure_commands, gallery

        if cmd_name not in gallery.KINDS:
            names = ", ".join(sorted(gallery.KINDS))
            raise InputError(f"{cmd_name}: no such figure; choose from {names}")
        return figure_commands.command(cmd_name, gallery.KINDS[cmd_name])


@main.group(cls=_Figures)
def figure() -> None:
    """Draw a figure, with its numbers (.npz) and provenance (.json) beside it.

    `damcha figure KIND --help` lists what each kind takes.
    """


def _snapshot_options(command: Any) -> Any:
    """Options that name a snapshot and held-out inputs."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--device", default="auto", help="auto, cpu, cuda, mps."),
        click.option("--n", default=512, show_default=True, type=click.IntRange(1),
                     help="How many held-out inputs."),
        click.option("--data", type=path, help="Folder of the data [what ships]."),
        click.option("--epoch", type=int, help="Epoch [the last]."),
        click.option("--run", "run_path", required=True, type=path),
    ):  # fmt: skip
        command = option(command)
    return command


def _with_bar(steps: Iterator[Any]) -> Any:
    """Run an analysis to its end with a progress bar on the terminal."""
    from tqdm import tqdm

    from damcha.analysis import progress

    with tqdm(unit="input", leave=False) as bar:

        def report(step: progress.Progress) -> None:
            bar.total = step.total
            bar.set_description(step.what, refresh=False)
            bar.update(step.done - bar.n)

        return progress.finished(steps, report)


@main.command()
@_snapshot_options
@click.option(
    "--interventions",
    default="usual",
    show_default=True,
    help="Separated by commas; the first is compared with.",
)
@click.option(
    "--format",
    "form",
    default="markdown",
    show_default=True,
    type=click.Choice(["markdown", "latex", "csv"]),
)
@click.option(
    "--other-run",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A further run on the same inputs, at its last epoch; its rows follow.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the table to a file.")
def ablate(
    run_path: Path,
    epoch: int | None,
    data: Path | None,
    n: int,
    device: Any,
    interventions: str,
    form: str,
    others: tuple[Path, ...],
    out: Path | None,
) -> None:
    """Print how held-out inputs fare without parts of the metric (paper, Table 3)."""
    from damcha import gallery
    from damcha.analysis.ablation import evaluate
    from damcha.checkpoint import atomic_write, open_run
    from damcha.figures import table

    run = open_run(run_path)
    examples = run.evaluation_set(data, n)
    snapshot = gallery.open_snapshot(run, epoch, device)
    snapshots = [snapshot]
    for path in others:
        other = open_run(path)
        if (other.config.task, other.config.data) != (run.config.task, run.config.data):
            raise InputError(
                f"other-run: '{other.name}' has another task or data than '{run.name}', so their "
                "losses cannot stand in one table"
            )
        if other.name in {one.run.name for one in snapshots}:
            raise InputError(f"other-run: two runs are named '{other.name}'; rename one folder")
        snapshots.append(gallery.open_snapshot(other, None, device))
    results = {}
    for one in snapshots:
        has_mean = one.run.mean_metric(one.epoch) is not None
        names = gallery.ablation.names_of(interventions, has_mean)
        edits = gallery.ablation.edits(one, names)
        results[one.run.name, one.epoch] = _with_bar(evaluate(one.model, examples, edits))
    if others:
        made = gallery.ablation.runs_table(snapshots, examples, results)
    else:
        made = gallery.ablation.table(snapshot, examples, results[run.name, snapshot.epoch])
    write = {"markdown": table.to_markdown, "latex": table.to_latex, "csv": table.to_csv}[form]
    if out is None:
        click.echo(write(made), nl=False)
    else:
        atomic_write(out, write(made))
        click.echo(str(out))


@main.command()
@_snapshot_options
@click.option(
    "--split",
    default="test",
    show_default=True,
    type=click.Choice(["train", "valid", "test"]),
    help="Part of the data.",
)
@click.option("--fid", is_flag=True, help="Measure FID and FID@Top-50 of the model's pictures.")
@click.option(
    "--outputs",
    multiple=True,
    type=click.Choice(["predictions", "completion", "filled"]),
    help="Pictures that FID is of [what the loss sees]; may be given twice.",
)
@click.option(
    "--inception",
    type=click.Path(path_type=Path),
    help="Weights of Inception-v3 for FID [a small network trained on the run's data].",
)
@click.option(
    "--beams",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Beam in which the targets of pairs are written; 1 is greedy.",
)
@click.option(
    "--bart",
    type=click.Path(path_type=Path),
    help="Folder of a BART model, for BARTScore of written targets.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1))
@click.option(
    "--format",
    "form",
    default="markdown",
    show_default=True,
    type=click.Choice(["markdown", "latex", "csv"]),
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the table, evaluation.json, evaluation.npz and the feature network.",
)
def evaluate(
    run_path: Path,
    epoch: int | None,
    data: Path | None,
    n: int,
    device: Any,
    split: Any,
    fid: bool,
    outputs: tuple[str, ...],
    inception: Path | None,
    beams: int,
    bart: Path | None,
    seed: int,
    form: str,
    out: Path | None,
) -> None:
    """Score a run on held-out examples as the paper does: MSE or NLL, accuracy, perplexity, FID;
    of pairs BLEU and chrF, too.
    """
    from damcha import gallery
    from damcha.analysis import evaluation
    from damcha.analysis.fid import inception as open_inception
    from damcha.analysis.fid import trained_network
    from damcha.analysis.text_scores import bart_scorer
    from damcha.checkpoint import atomic_write, open_run
    from damcha.figures import table
    from damcha.figures.evaluation import evaluation_table

    run = open_run(run_path)
    examples = run.evaluation_set(data, n, split)
    snapshot = gallery.open_snapshot(run, epoch, device)
    network = None
    if fid or outputs or inception is not None:
        for kind in outputs or (None,):  # refused before minutes of training, not after
            evaluation.outputs_of(snapshot.model, kind)
        if inception is not None:
            network = open_inception(inception)
        else:
            network = _with_bar(trained_network(examples, run.config.data, split, out, seed=seed))
    report = _with_bar(
        evaluation.evaluate(
            snapshot.model,
            examples,
            network=network,
            outputs=outputs or (None,),
            beams=beams,
            bart=None if bart is None else bart_scorer(bart),
            seed=seed,
            provenance={
                "run": run.name,
                "epoch": snapshot.epoch,
                "weights_digest": snapshot.weights_digest,
                "split": split,
            },
        )
    )
    made = evaluation_table(report, f"{run.name}, epoch {snapshot.epoch}; {examples.name}")
    write, suffix = {
        "markdown": (table.to_markdown, "md"),
        "latex": (table.to_latex, "tex"),
        "csv": (table.to_csv, "csv"),
    }[form]
    if out is None:
        click.echo(write(made), nl=False)
        return
    files = evaluation.write_report(report, out)
    atomic_write(out / f"evaluation.{suffix}", write(made))
    for path in (*files, out / f"evaluation.{suffix}"):
        click.echo(str(path))


@main.command()
@_snapshot_options
@click.option("--layer", default=0, help="Layer, where the stack does not share its metric.")
@click.option("--position", default=-1, help="Which refresh of a causal metric [the last].")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write all numbers to a .npz; M of input k is metric[k] @ metric_basis.",
)
def atlas(
    run_path: Path,
    epoch: int | None,
    data: Path | None,
    n: int,
    device: Any,
    layer: int,
    position: int,
    out: Path | None,
) -> None:
    """Survey the metrics of held-out inputs: how they vary, what can be read from them."""
    import io

    import numpy as np

    from damcha import gallery
    from damcha.analysis.atlas import survey
    from damcha.analysis.probes import probes
    from damcha.checkpoint import atomic_write, open_run
    from damcha.errors import InputError

    run = open_run(run_path)
    examples = run.evaluation_set(data, n)
    snapshot = gallery.open_snapshot(run, epoch, device)
    found = _with_bar(survey(snapshot.model, examples, layer, position))
    click.echo(f"{run.name}, epoch {snapshot.epoch}; {examples.name}")
    click.echo(f"adaptivity (variance over mean squared norm): {found.adaptivity:.4g}")
    if found.is_constant:
        click.echo("every input has the same metric: there is no map, and nothing to read from it")
    elif found.labels is not None:
        # Where heads meet, R adds forms in different bases: then M itself is read.
        unfit = gallery.unfit(run, "head_metrics")
        feature: Any = "metric" if unfit else "head_metrics"
        try:
            rows, note = probes(found, feature)
        except InputError as error:  # too few of a class: the numbers are still to be written
            rows, note = (), str(error)
        name = "R" if feature == "head_metrics" else "M"
        click.echo(f"the class, read from {name} or from f_θ's input: {note}")
        for row in rows:
            click.echo(f"  {row.name:<16} {row.accuracy:6.1%} ± {row.spread:.1%}")
    if out is not None:
        buffer = io.BytesIO()
        arrays = {
            **found.features,
            **{f"{name}_basis": rows for name, rows in found.basis.items()},
            **found.statistics,
            "mean": found.mean,
            "variance": found.variance,
            "places": examples.places,
        }
        if found.labels is not None:
            arrays["labels"] = found.labels
        np.savez(buffer, allow_pickle=False, **arrays)
        atomic_write(out, buffer.getvalue())
        click.echo(str(out))


@main.group(invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure what attention costs; without a word, DAMCHA against MHA."""
    if context.invoked_subcommand is None:
        context.invoke(bench_layer)


@bench.command("layer")
@click.option("--repeats", default=15, show_default=True, type=click.IntRange(3, 1000))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 1024))
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--out", type=click.Path(path_type=Path), help="Write the numbers as JSON, too.")
def bench_layer(repeats: int, threads: int, device: str, out: Path | None) -> None:
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


_numbers = click.option(
    "--repeats", default=7, show_default=True, type=click.IntRange(1, 1000), help="Rounds."
)
_threads = click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 1024))
_place = click.option(
    "--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"])
)
_json = click.option("--out", type=click.Path(path_type=Path), help="Write the numbers as JSON.")
_latex = click.option("--latex", type=click.Path(path_type=Path), help="Write a booktabs table.")


@bench.command("mechanisms")
@click.option(
    "--attention", "attentions", multiple=True, help="A name; all published ones without."
)
@click.option("--seq-len", "seq_lens", multiple=True, type=click.IntRange(1, 65536))
@click.option("--d-model", "d_models", multiple=True, type=click.IntRange(1, 16384))
@click.option("--n-heads", default=8, show_default=True, type=click.IntRange(1, 1024))
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1, 65536))
@click.option("--stack", is_flag=True, help="Blocks with feed-forward, not a layer alone.")
@click.option("--n-layers", default=4, show_default=True, type=click.IntRange(1, 256))
@_numbers
@_threads
@_place
@_json
@_latex
@click.option("--figure", type=click.Path(path_type=Path), help="Write a PDF, SVG or PNG.")
def bench_mechanisms(
    attentions: tuple[str, ...],
    seq_lens: tuple[int, ...],
    d_models: tuple[int, ...],
    n_heads: int,
    batch: int,
    stack: bool,
    n_layers: int,
    repeats: int,
    threads: int,
    device: str,
    out: Path | None,
    latex: Path | None,
    figure: Path | None,
) -> None:
    """Every mechanism on the same work: parameters, multiply-adds, time and memory, beside MHA."""
    import torch

    from damcha.analysis.scaling import PUBLISHED, measure
    from damcha.checkpoint import pick_device

    torch.set_num_threads(threads)
    found = _measured(measure(
        attentions or PUBLISHED, seq_lens or (64, 256), d_models or (128,),
        kind="stack" if stack else "layer", n_heads=n_heads, batch=batch, n_layers=n_layers,
        repeats=repeats, device=str(pick_device(device)),
    ))  # fmt: skip
    from damcha.figures.scaling import scaling_figure, scaling_table

    _tell(scaling_table(found), found, out, latex)
    if figure is not None:
        from damcha import __version__
        from damcha.figures import paper
        from damcha.figures.spec import Provenance

        command = shlex.join(["damcha", *sys.argv[1:]])
        made = Provenance(settings={"device": found.device}, version=__version__, command=command)
        paper.save(scaling_figure(found, made), figure)
        click.echo(str(figure))


@bench.command("published")
@click.option("--d-model", default=256, show_default=True, type=click.IntRange(8, 16384))
@click.option("--seq-len", default=128, show_default=True, type=click.IntRange(1, 8192))
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1, 4096))
@_numbers
@_threads
@_place
def bench_published(
    d_model: int, seq_len: int, batch: int, repeats: int, threads: int, device: str
) -> None:
    """Each mechanism against the way published code computes it, on the same weights."""
    import torch

    from damcha.analysis.published import against_published
    from damcha.checkpoint import pick_device

    torch.set_num_threads(threads)
    click.echo(f"d {d_model}, L {seq_len}, batch {batch}: median of paired ratios (quartiles)")
    for row in _measured(against_published(
        d_model=d_model, seq_len=seq_len, batch=batch, repeats=repeats,
        device=str(pick_device(device)),
    )):  # fmt: skip
        low, middle, high = row.ratio
        kept = "yes" if row.holds else "NO"
        line = f"  {row.name} / {row.baseline}: {middle:.2f} ({low:.2f} to {high:.2f})"
        click.echo(f"{line}  at most 1.00: {kept}")


@bench.command("table2")
@_numbers
@_threads
@_place
@_json
@_latex
def bench_table2(
    repeats: int, threads: int, device: str, out: Path | None, latex: Path | None
) -> None:
    """The paper's Table 2: GFLOPs by its formula, with time and memory measured here."""
    import torch

    from damcha.analysis.scaling import TABLE2, TABLE2_SYSTEMS, measure
    from damcha.checkpoint import pick_device
    from damcha.figures.scaling import table2

    torch.set_num_threads(threads)
    found = _measured(measure(
        tuple(TABLE2_SYSTEMS.values()), tuple(TABLE2.values()), (128,), kind="stack", n_layers=4,
        repeats=repeats, device=str(pick_device(device)),
    ))  # fmt: skip
    _tell(table2(found), found, out, latex)


def _measured(steps: Iterator[Any]) -> Any:
    """Run a measurement under a progress bar."""
    from tqdm import tqdm

    from damcha.analysis.progress import finished

    with tqdm(unit="round", leave=False) as bar:

        def report(step: Any) -> None:
            bar.total = step.total
            bar.set_description(step.what)
            bar.update(step.done - bar.n)

        return finished(steps, report)


def _tell(table: Any, found: Any, out: Path | None, latex: Path | None) -> None:
    """Print a table, and write what was asked for."""
    import json
    from dataclasses import asdict

    from damcha.checkpoint import atomic_write
    from damcha.figures.table import to_latex, to_markdown

    click.echo(to_markdown(table))
    for path, content in ((out, json.dumps(asdict(found), indent=2) + "\n"),
                          (latex, to_latex(table))):  # fmt: skip
        if path is not None:
            atomic_write(path, content)
            click.echo(str(path))


if __name__ == "__main__":
    main()
