"""The targets that a model writes for held-out sources, beside the references of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from damcha.analysis.progress import Progress
from damcha.data.evaluation import EvaluationSet
from damcha.data.pairs import PairExamples
from damcha.errors import InputError
from damcha.model import PairLM, TaskModel


@dataclass(frozen=True)
class Written:
    """What a model made of one source."""

    source: str
    hypothesis: str
    references: tuple[str, ...]
    """All targets that the data set has for the source."""
    ended: bool
    """Whether the model wrote an END; otherwise the row was full."""
    cut: bool
    """Whether the source was too long for the model, which saw its beginning."""


@torch.no_grad()
def write_targets(
    model: TaskModel, data: EvaluationSet, beams: int = 1, size: int = 64
) -> Iterator[Progress | tuple[Written, ...]]:
    """Write a target for each source of held-out pairs, once for sources that occur several times.

    Sources of equal length go together, `size` at a time: then none needs a pad, and the result is
    the one that each would have alone. Yields Progress, and last the results in the order of the
    data.

    Raises
    ------
    InputError
        If the model does not write targets, or `beams` is not 1 to 64.
    """
    if not isinstance(model, PairLM) or not isinstance(data.data, PairExamples):
        raise InputError(
            f"a model of task '{model.config.task}' writes no targets; choose a run of task "
            "'sequence_to_sequence'"
        )
    pairs, device = data.data.data, next(model.parameters()).device
    _, first = np.unique(pairs.groups[data.places], return_index=True)
    places = data.places[np.sort(first)]
    rows = data.data.rows(places)
    lengths = (rows == model.marks.separator).argmax(1) + 1
    found: dict[int, Written] = {}
    for length in np.unique(lengths):
        index = np.flatnonzero(lengths == length)
        for part in np.split(index, range(size, len(index), size)):
            yield Progress(len(found), len(places), "sources")
            prompt = torch.from_numpy(rows[part, :length]).to(device)
            written = model.answer(prompt, beams=beams)[:, length:].cpu().numpy()
            for k, symbols in zip(part.tolist(), written, strict=True):
                place = int(places[k])
                source = pairs.sources[place]
                found[k] = Written(
                    source,
                    model.spelled(symbols.tolist()),
                    tuple(pairs.targets[int(same)] for same in _of_group(pairs.groups, place)),
                    bool((symbols == model.marks.end).any()),
                    len(data.data.tokenizer.encode(source)) + 1 > int(length),
                )
    yield tuple(found[k] for k in range(len(places)))


def _of_group(groups: NDArray[np.int64], place: int) -> NDArray[np.int64]:
    return np.flatnonzero(groups == groups[place])
