"""`damcha figure KIND …`: a shell command for every figure of the gallery, from its signature.

What a figure is of (``Kind.of``) decides how its inputs are named; the parameters of its function
that are annotated with a help text are its own options.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from damcha import gallery
from damcha.checkpoint import atomic_write, open_run
from damcha.errors import ConfigError, InputError
from damcha.figures import paper, sidecar
from damcha.figures.spec import Figure
from damcha.gallery import Kind

PATH = click.Path(path_type=Path)


def command(name: str, kind: Kind) -> click.Command:
    """Return the shell command that draws a kind of figure."""
    options = [*_given(kind.of), *_own(kind.draw), *_page()]

    def run(out: Path, venue: str, column: Any, **given: Any) -> None:
        drawn = _OPENERS[kind.of](kind.draw, given).sized(venue, column)
        paper.save(drawn, out)
        atomic_write(out.with_suffix(".npz"), sidecar.to_npz(drawn))
        atomic_write(out.with_suffix(".json"), sidecar.to_json(drawn))
        click.echo(f"{out}, {out.with_suffix('.npz').name}, {out.with_suffix('.json').name}")

    about = (inspect.getdoc(kind.draw) or "").partition("\n\n")[0]
    return click.Command(name, params=options, callback=run, help=about)


# Options ------------------------------------------------------------------------------------------


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A,B or R,G,B: whole numbers, as many as the form has letters."""

    def __init__(self, form: str) -> None:
        self.name = form

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the numbers; our own error says how they are written."""
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        letters = self.name.split(",")
        if len(numbers) != len(letters):
            option = param.name if param is not None and param.name else "option"
            example = ",".join("0123"[: len(letters)])
            raise ConfigError(
                f"--{option} {value}: write it as {self.name}, e.g. --{option} {example}"
            )
        return numbers


def _own(draw: Callable[..., Figure]) -> Iterator[click.Option]:
    """The options of a figure: its parameters that are annotated with a help text."""
    hints = get_type_hints(draw, include_extras=True)
    for name, parameter in inspect.signature(draw).parameters.items():
        if get_origin(hints[name]) is Annotated:
            hint, help_ = get_args(hints[name])[:2]
            yield _option(name, hint, help_, parameter.default)


def _option(name: str, hint: Any, help_: str, default: Any) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    if get_origin(hint) in (Union, types.UnionType):  # X | None
        hint = next(part for part in get_args(hint) if part is not type(None))
    if hint is bool:
        return click.Option([flag], is_flag=True, default=default, help=help_)
    kind: Any = hint
    if get_origin(hint) is Literal:
        kind = click.Choice(get_args(hint))
    elif get_origin(hint) is tuple:
        kind = Numbers(",".join("ABCD"[: len(get_args(hint))]))
    elif hint not in (int, float, str, Path):
        raise TypeError(f"{name}: {hint} cannot be an option of the shell")
    shown = default not in (None, "", -1)
    return click.Option([flag], type=kind, default=default, show_default=shown, help=help_)


def _page() -> list[click.Parameter]:
    return [
        click.Option(["--out"], required=True, type=PATH, help="A .pdf, .svg or .png."),
        click.Option(["--venue"], default="icml", show_default=True, help="neurips, icml, acl, …"),
        click.Option(["--column"], type=click.Choice(["single", "double"]), default="single"),
    ]


def _given(of: str) -> list[click.Parameter]:
    """How the things that a figure is of are named."""
    several = of in ("histories", "runs")
    run = click.Option(
        ["--run"], required=True, multiple=several, type=PATH,
        help="A run folder" + "; may be given several times." * several,
    )  # fmt: skip
    epoch = click.Option(["--epoch"], type=int, help="Epoch [the last].")
    device = click.Option(["--device"], default="auto", help="auto, cpu, cuda, mps.")
    if of == "runs":
        return [run]
    if of == "set":
        n = click.Option(["--n"], type=click.IntRange(1), default=512, show_default=True,
                         help="How many held-out inputs.")  # fmt: skip
        data = click.Option(["--data"], type=PATH, help="Folder of the data [what ships].")
        return [run, epoch, data, n, device]
    options = [run, *([] if several else [epoch]), *_input(""), device]
    if of == "pair":
        other = "The other side's; the first one's where it is not given."
        options += [
            click.Option(["--other-run"], type=PATH, help=other),
            click.Option(["--other-epoch"], type=int, help="The other side's epoch."),
            *_input("other-"),
        ]
    return options


def _input(prefix: str) -> list[click.Parameter]:
    return [
        click.Option([f"--{prefix}input"], type=PATH, help="Image or text file."),
        click.Option([f"--{prefix}text"], help="The text itself, for a run on text."),
        click.Option([f"--{prefix}frame"], type=int, default=0, help="Frame of an animation."),
        click.Option([f"--{prefix}invert"], is_flag=True, help="Swap light and dark."),
        click.Option(
            [f"--{prefix}background"], type=Numbers("R,G,B"), default=(255, 255, 255),
            help="What transparent pixels are laid on [255,255,255].",
        ),
    ]  # fmt: skip


# What figures are of ------------------------------------------------------------------------------


def _source(given: dict[str, Any], prefix: str = "") -> tuple[Any, dict[str, Any]]:
    """Take an input and how to read it out of the options."""
    path, text = given.pop(f"{prefix}input"), given.pop(f"{prefix}text")
    how = {name: given.pop(f"{prefix}{name}") for name in ("frame", "invert", "background")}
    if path is not None and text is not None:
        raise InputError("give the input as --input FILE, or as --text TEXT, not both")
    return (path if text is None else text), how


def _prepared(run: Any, source: Any, how: dict[str, Any]) -> Any:
    if source is None:
        raise InputError("give the input as --input FILE, or as --text TEXT")
    if isinstance(source, str) and not run.config.is_text:
        raise InputError(f"--text: run '{run.name}' takes pictures; give one as --input FILE")
    example = run.prepare(source, **how)
    for note in example.notes:
        click.echo(f"note: {note}", err=True)
    return example


def _of_subject(draw: Callable[..., Figure], given: dict[str, Any]) -> Figure:
    run, epoch, device = open_run(given.pop("run")), given.pop("epoch"), given.pop("device")
    example = _prepared(run, *_source(given))
    return draw(gallery.open_subject(run, epoch, example, device=device), **given)


def _of_pair(draw: Callable[..., Figure], given: dict[str, Any]) -> Figure:
    device = given.pop("device")
    run, epoch = open_run(given.pop("run")), given.pop("epoch")
    source, how = _source(given)
    other_path, other_epoch = given.pop("other_run"), given.pop("other_epoch")
    other_source, other_how = _source(given, "other_")
    if other_source is None:
        other_source, other_how = source, how
    other_run = run if other_path is None else open_run(other_path)
    if other_epoch is None and other_path is None:
        other_epoch = epoch
    first = gallery.open_subject(run, epoch, _prepared(run, source, how), device=device)
    second = gallery.open_subject(
        other_run, other_epoch, _prepared(other_run, other_source, other_how), device=device
    )
    return draw(first, second, **given)


def _of_histories(draw: Callable[..., Figure], given: dict[str, Any]) -> Figure:
    runs, device = [open_run(path) for path in given.pop("run")], given.pop("device")
    source, how = _source(given)
    return draw(
        [
            gallery.epochs.open_history(run, _prepared(run, source, how), device=device)
            for run in runs
        ],
        **given,
    )


def _of_set(draw: Callable[..., Figure], given: dict[str, Any]) -> Figure:
    run, epoch, device = open_run(given.pop("run")), given.pop("epoch"), given.pop("device")
    data = run.evaluation_set(given.pop("data"), given.pop("n"))
    return draw(gallery.open_snapshot(run, epoch, device), data, **given)


def _of_runs(draw: Callable[..., Figure], given: dict[str, Any]) -> Figure:
    return draw([open_run(path) for path in given.pop("run")], **given)


_OPENERS: dict[str, Callable[[Callable[..., Figure], dict[str, Any]], Figure]] = {
    "subject": _of_subject,
    "pair": _of_pair,
    "histories": _of_histories,
    "set": _of_set,
    "runs": _of_runs,
}
