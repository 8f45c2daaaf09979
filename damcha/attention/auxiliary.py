"""Auxiliary losses: how a layer hands a loss term to whoever trains the model.

``with auxiliary_losses() as terms: y = model(x)`` collects what the layers add; then
``loss + sum(terms.values())``. A layer adds with :func:`add_auxiliary` and computes nothing unless
:func:`collecting`. The open collection is a context variable, so threads do not meet and nothing is
left on a module that others may share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_terms: ContextVar[dict[str, Tensor] | None] = ContextVar("damcha_auxiliary_losses", default=None)


@contextmanager
def auxiliary_losses() -> Iterator[dict[str, Tensor]]:
    """Collect the auxiliary losses of the forward passes within, summed over layers by name."""
    terms: dict[str, Tensor] = {}
    token = _terms.set(terms)
    try:
        yield terms
    finally:
        _terms.reset(token)


def collecting() -> bool:
    """Whether somebody wants auxiliary losses."""
    return _terms.get() is not None


def add_auxiliary(name: str, value: Tensor) -> None:
    """Add a weighted loss term; without effect where nobody collects."""
    terms = _terms.get()
    if terms is not None:
        terms[name] = terms[name] + value if name in terms else value
