"""Long analyses are generators: they yield Progress, and last of all their result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far a long analysis is."""

    done: int
    total: int
    what: str = ""
    """What is being done, for a person."""


def finished(steps: Iterator[Progress | T], report: Callable[[Progress], None] | None = None) -> T:
    """Run an analysis to its end and return its result; `report` is called on the way."""
    result: T | None = None
    for step in steps:
        if isinstance(step, Progress):
            if report is not None:
                report(step)
        else:
            result = step
    assert result is not None  # the last thing that an analysis yields
    return result


def relayed(steps: Iterator[Progress | T]) -> Generator[Progress, None, T]:
    """An analysis within another: ``result = yield from relayed(steps)`` passes its Progress on."""
    result: T | None = None
    for step in steps:
        if isinstance(step, Progress):
            yield step
        else:
            result = step
    assert result is not None  # the last thing that an analysis yields
    return result
