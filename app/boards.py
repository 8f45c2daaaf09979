"""The figure board, kept on disk as it grows: closing the tab loses nothing.

    boards/ID.json            figures in order with their words, the page they are for
    boards/figures/SHA256     a figure (damcha/figures/stored.py), written once
    boards/inputs/SHA256      a file that the user gave

The ID stands in the address, so who has the link opens the board. A tab writes only to a board that
it began: another tab that came by the link goes on in a copy, which shares the files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import state

if TYPE_CHECKING:
    from damcha.figures.spec import Figure

log = logging.getLogger("damcha.app")

MOST_COLLECTED = 40
MOST_COLLECTED_BYTES = 200_000_000
MOST_BOARDS = 1000
MOST_BYTES = 5_000_000_000
"""Of all boards together: beyond these, those unused for longest are forgotten."""
SPARED = 24 * 3600
"""Seconds for which a file that no board names is left alone: a board may be about to."""
_MAX_LIST_BYTES = 4_000_000
_PLACES = ("figures", "inputs")
_pruning = threading.Lock()
_ID = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class Collected:
    """A figure on the board, under the name and with the words that the user gave it."""

    figure: Figure
    inputs: tuple[tuple[str, bytes], ...]
    """What it was made from that is on no disk of the server: (name, content)."""
    number: int
    """Tells the board's figures apart, whatever their order."""
    files: tuple[str, ...] = ()
    """Of the figure as collected, and of its inputs, once they are kept."""


def folder() -> Path:
    """Where boards are kept: DAMCHA_BOARDS, or boards/ of the project."""
    home = Path(__file__).resolve().parent.parent
    return Path(os.environ.get("DAMCHA_BOARDS") or home / "boards")


def board() -> list[Collected]:
    """Return this tab's board; the first time, what the link says."""
    s = state.session()
    if "board" in s.linked:
        s.linked.discard("board")
        s.board += _opened(s)
        if s.board:
            s.board_kept = _manifest(s)
        else:
            s.board_id = ""
    return s.board


def add(figure: Figure, inputs: Iterable[tuple[str, bytes]]) -> str:
    """Put a figure on the board; say what happened."""
    on = board()
    size = sum(array.nbytes for one in on for array in one.figure.arrays.values())
    if len(on) >= MOST_COLLECTED or size > MOST_COLLECTED_BYTES:
        return "The board is full: take its ZIP, then remove what is done."
    on.append(Collected(figure, tuple(inputs), 1 + max((one.number for one in on), default=0)))
    fault = keep()
    count = "1 figure" if len(on) == 1 else f"{len(on)} figures"
    return f"On the board: {count}. " + (fault or "The address of this page keeps the board.")


def collect(figure: Figure) -> str:
    """Put a figure on the board, with the uploads that it may have come from; say what happened."""
    s = state.session()
    given = [one for one in (s.given, s.compare_upload) if one is not None]
    uploads = (one for one in given if one.kind in ("upload", "camera"))
    return add(figure, [(one.name, one.content) for one in uploads])


def keep() -> str:
    """Write the board to disk where it has changed; return "", or a sentence why that failed."""
    s, home = state.session(), folder()
    from damcha.checkpoint.files import atomic_write

    try:
        for place in _PLACES:
            (home / place).mkdir(parents=True, exist_ok=True)
        s.board[:] = [one if one.files else _stored(one, home) for one in s.board]
        content = _manifest(s)
        if content == s.board_kept:
            return ""
        if not s.board_own:
            _prune(home)
        number = s.board_id if s.board_own else secrets.token_hex(16)
        atomic_write(home / f"{number}.json", content)
    except OSError as error:
        log.warning("the board is not kept in %s: %s", home, error)
        return f"They last as long as this tab only: {error.strerror or error}."
    s.board_id, s.board_own, s.board_kept = number, True, content
    state.write_url(s.shown)
    return ""


def _manifest(s: state.Session) -> str:
    """The board without its arrays, as JSON; every figure is kept."""
    return json.dumps(
        {
            "format": "damcha-board-1",
            "venue": s.venue,
            "column": s.column,
            "figures": [
                {
                    "file": one.files[0],
                    "title": one.figure.title,
                    "caption": one.figure.caption,
                    "inputs": [
                        {"name": name, "file": file}
                        for (name, _), file in zip(one.inputs, one.files[1:], strict=True)
                    ],
                }
                for one in s.board
            ],
        }
    )


def _stored(one: Collected, home: Path) -> Collected:
    """Write a figure and its inputs, each under the digest of its content."""
    from damcha.checkpoint.files import atomic_write
    from damcha.figures import stored

    figures, given = _PLACES
    contents = [(figures, stored.to_bytes(one.figure))]
    contents += [(given, content) for _, content in one.inputs]
    files = []
    for place, content in contents:
        files.append(hashlib.sha256(content).hexdigest())
        path = home / place / files[-1]
        if path.exists():
            os.utime(path)
        else:
            atomic_write(path, content)
    return replace(one, files=tuple(files))


def _opened(s: state.Session) -> list[Collected]:
    """Read the board of the link; what cannot be read gets a notice."""
    from damcha.checkpoint.files import read_text
    from damcha.errors import DamchaError
    from damcha.figures.style import VENUES

    home, found = folder(), []
    wrong: list[str] = []
    try:
        if not _ID.fullmatch(s.board_id):
            raise ValueError("it is not the number of a board")
        path = home / f"{s.board_id}.json"
        content = json.loads(read_text(path, _MAX_LIST_BYTES, home))
        entries = content["figures"][:MOST_COLLECTED]
        if content["venue"] in VENUES and content["column"] in ("single", "double"):
            s.venue, s.column = content["venue"], content["column"]
        os.utime(path)
        room = 2 * MOST_COLLECTED_BYTES
        for k, entry in enumerate(entries):
            try:
                one, size = _collected(entry, k + 1, home, room)
            except (DamchaError, OSError, ValueError, KeyError, TypeError) as error:
                wrong.append(f"Figure {k + 1} of the board cannot be opened: {error}.")
            else:
                found.append(one)
                room -= size
    except (DamchaError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        wrong.append(f"The link's board cannot be opened: {error}.")
    for sentence in wrong:
        log.warning("%s", sentence)
    s.notices += wrong
    return found


def _collected(entry: Any, number: int, home: Path, room: int) -> tuple[Collected, int]:
    """Read one figure of a board with its inputs, at most `room` bytes; also how many."""
    from damcha.figures import stored

    given = [(str(part["name"]), str(part["file"])) for part in entry["inputs"]]
    figure_file = str(entry["file"])
    content = _read(home / "figures", figure_file, room)
    figure = replace(
        stored.from_bytes(content), title=str(entry["title"]), caption=str(entry["caption"])
    )
    size, inputs = len(content), []
    for name, file in given:
        inputs.append((name, _read(home / "inputs", file, room - size)))
        size += len(inputs[-1][1])
    files = (figure_file, *(file for _, file in given))
    return Collected(figure, tuple(inputs), number, files), size


def _read(place: Path, name: str, room: int) -> bytes:
    """Read a file that is named by the digest of its content."""
    from damcha.checkpoint.files import regular_file

    if not _FILE.fullmatch(name):
        raise ValueError("its file has no proper name")
    content = regular_file(place / name, room).read_bytes()
    if hashlib.sha256(content).hexdigest() != name:
        raise ValueError("its file is damaged")
    return content


def _prune(home: Path) -> None:
    """Forget the boards that were unused for longest where there are too many, and their files."""
    with _pruning:
        files = {path: path.stat() for place in _PLACES for path in (home / place).glob("[!.]*")}
        sizes = {path.name: known.st_size for path, known in files.items()}
        lists = {path: path.stat().st_mtime for path in home.glob("[!.]*.json")}
        named: set[str] = set()
        size = 0
        for count, path in enumerate(sorted(lists, key=lambda path: -lists[path])):
            new = set(_FILE.findall(path.read_text("utf-8", "replace"))) - named
            size += sum(sizes.get(name, 0) for name in new)
            if count >= MOST_BOARDS or size > MOST_BYTES:
                path.unlink(missing_ok=True)
            else:
                named |= new
        for path, known in files.items():
            if path.name not in named and known.st_mtime < time.time() - SPARED:
                path.unlink(missing_ok=True)
