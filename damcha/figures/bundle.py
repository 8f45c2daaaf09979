"""A set of figures as one ZIP: files for the paper, numbers, captions, and a script to check them.

    figures/01-metric-full.pdf .svg .png        for the venue's column
    numbers/01-metric-full.npz .csv .json       every array; where it comes from
    inputs/photo.jpg                            what the user gave
    figures.tex                                 LaTeX that includes them, captions, labels
    regenerate.py                               makes every figure again and compares all numbers

Equal figures give equal bytes.
"""

from __future__ import annotations

import io
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from damcha.errors import InputError
from damcha.figures import paper, sidecar
from damcha.figures.spec import Figure
from damcha.figures.table import escape

_TIME = (2026, 1, 1, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class Item:
    """One collected figure."""

    figure: Figure
    inputs: Mapping[str, bytes]
    """What its command reads that may not be on a disk: name → content."""


def bundle(
    items: Sequence[Item],
    venue: str,
    column: Literal["single", "double"],
    threads: int,
) -> Iterator[int | bytes]:
    """Write the ZIP; yields how many figures are done, and last the bytes.

    `threads` is how many processor threads the numbers were computed with: sums are split between
    threads, and the last bit depends on it.

    Raises
    ------
    InputError
        If there is nothing to write.
    """
    if not items:
        raise InputError("the board is empty; add figures from the Export menu under each of them")
    buffer = io.BytesIO()
    lines, tex = [], []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:

        def write(name: str, content: bytes | str) -> None:
            archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)

        stored: dict[str, bytes] = {}
        for k, item in enumerate(items):
            yield k
            figure = item.figure.sized(venue, column)
            name = f"{k + 1:02d}-{safe_name(figure.name)}"
            command, used = _relocated(figure.provenance.command, item.inputs, stored)
            made = replace(figure, provenance=replace(figure.provenance, command=command))
            for form in get_args(paper.Format):
                write(f"figures/{name}.{form}", paper.render(made, form))
            write(f"numbers/{name}.npz", sidecar.to_npz(made))
            write(f"numbers/{name}.csv", sidecar.to_csv(made))
            write(f"numbers/{name}.json", sidecar.to_json(made))
            stored |= used
            lines.append((name, command))
            tex.append(_tex(name, made))
        for name, content in stored.items():
            write(f"inputs/{name}", content)
        write("figures.tex", "% \\usepackage{graphicx}\n\n" + "\n".join(tex))
        write("regenerate.py", _SCRIPT.format(threads=threads, commands=_listed(lines)))
    yield buffer.getvalue()


def safe_name(text: str) -> str:
    """A file name of letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", text).strip("-").lower()[:60] or "figure"


def _relocated(
    command: str, inputs: Mapping[str, bytes], stored: Mapping[str, bytes]
) -> tuple[str, dict[str, bytes]]:
    """Point a command to inputs/ for the files that come with it; also those files by name."""
    words = shlex.split(command)
    used: dict[str, bytes] = {}
    for k, word in enumerate(words[:-1]):
        if word not in ("--input", "--other-input") or words[k + 1] not in inputs:
            continue
        content = inputs[words[k + 1]]
        stem, _, suffix = words[k + 1].rpartition(".")
        base = safe_name(stem or suffix)
        suffix = safe_name(suffix) if stem else "png"
        name, n = f"{base}.{suffix}", 2
        while {**stored, **used}.get(name, content) != content:
            name, n = f"{base}-{n}.{suffix}", n + 1
        used[name] = content
        words[k + 1] = f"inputs/{name}"
    return shlex.join(words), used


def _tex(name: str, figure: Figure) -> str:
    return "\n".join(
        [
            r"\begin{figure}[t]",
            r"  \centering",
            rf"  \includegraphics[width=\linewidth]{{figures/{name}.pdf}}",
            rf"  \caption{{{escape(figure.caption)}}}",
            rf"  \label{{fig:{safe_name(figure.name)}-{name[:2]}}}",
            r"\end{figure}",
            "",
        ]
    )


def _listed(lines: Sequence[tuple[str, str]]) -> str:
    return "".join(f"    ({name!r}, {shlex.split(command)!r}),\n" for name, command in lines)


_SCRIPT = '''"""Make every figure of this folder again, and check that all numbers are the same.

    python regenerate.py [CHECKPOINTS]     CHECKPOINTS: a folder of runs, if they have moved

Needs the `damcha` that made them. Figures go to again/.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

# Sums are split between threads, and the last bit depends on how.
os.environ.update(OMP_NUM_THREADS="{threads}", MKL_NUM_THREADS="{threads}")
HERE = Path(__file__).resolve().parent
FIGURES = [
{commands}]

os.chdir(HERE)
Path("again").mkdir(exist_ok=True)
wrong = 0
for name, words in FIGURES:
    if not words:
        print(name, "has no command: composed of others")
        continue
    if len(sys.argv) > 1:
        moved = lambda word: str(Path(sys.argv[1]).resolve() / Path(word).name)
        words = [moved(w) if v in ("--run", "--other-run") else w
                 for v, w in zip(["", *words], words)]
    words = [w if v != "--out" else f"again/{{name}}.pdf" for v, w in zip(["", *words], words)]
    subprocess.run([sys.executable, "-m", "damcha.cli", *words[1:]], check=True,
                   stdout=subprocess.DEVNULL)
    with np.load(f"numbers/{{name}}.npz") as old, np.load(f"again/{{name}}.npz") as new:
        same = sorted(old.files) == sorted(new.files) and all(
            np.array_equal(old[k], new[k], equal_nan=old[k].dtype.kind == "f")
            for k in old.files if k != "provenance")
    print(name, "is the same" if same else "DIFFERS", flush=True)
    wrong += not same
sys.exit(wrong > 0)
'''
