"""The ``damcha`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from damcha.errors import ConfigError, DamchaError


class _Group(click.Group):
    """Shows our own errors as one line; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DamchaError as error:
            click.echo(f"damcha: {error}", err=True)
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

    Under torchrun or accelerate launch, several processes share each batch.
    """
    from tqdm import tqdm

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
    command = " ".join(["damcha train", preset, *(f"--set {pair}" for pair in pairs)])
    device = "cpu" if cpu else "auto"
    bar: tqdm[Any] | None = None
    progress = run_training(
        config, folder, data, command=command, device=device, tensorboard=tensorboard
    )
    for now in progress:
        if bar is None:
            bar = tqdm(total=now.n_steps, initial=now.step - 1, unit="step", smoothing=0.05)
        bar.update(now.step - bar.n)
        rate = bar.format_dict["rate"]
        speed = f"{rate * now.tokens:,.0f} tokens/s" if rate else ""
        bar.set_postfix_str(f"loss {now.loss:.4f} {speed}")
        if now.record is not None:
            shown = ", ".join(f"{k} {v:.4f}" for k, v in now.record.items() if "_loss" in k)
            bar.write(f"epoch {now.record['epoch']}: {shown}")
    if bar is None:
        click.echo(f"{folder} is complete: nothing left to train")
    else:
        bar.close()
        click.echo(f"{folder} is complete")


if __name__ == "__main__":
    main()
