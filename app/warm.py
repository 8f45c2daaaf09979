"""Loading what is slow where nobody waits for it."""

from __future__ import annotations

import gc
import os
import sys
import threading

import streamlit as st

_lock = threading.Lock()
_done: set[str] = set()


def start(new: bool) -> None:
    """In a new session, let the browser load plotly while Python works.

    An empty chart, there for a moment, makes the browser fetch its plotting code (about a
    second). In that time the first session of the process imports torch, the others draw.
    """
    if not new:
        return
    slot = st.empty()
    slot.plotly_chart(
        {
            "data": [{"type": "scatter", "x": [], "y": []}],
            "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}},
        },
        config={"staticPlot": True},
        key="warm",
        height=40,
    )
    if "torch" not in sys.modules:
        import torch

        # Inputs are small, users may be several: more threads a forward pass only contend.
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    slot.empty()


def finish() -> None:
    """After the first picture of the process, prepare exports and spare the garbage collector.

    Streamlit collects all garbage after every run of a script; with torch's objects among it, that
    stops the interpreter for about 100 ms.
    """
    with _lock:
        if _done:
            return
        _done.add("finish")
    threading.Thread(target=_prepare, daemon=True, name="damcha-warm").start()


def _prepare() -> None:
    from damcha.figures import paper, sidecar  # noqa: F401

    gc.collect()
    gc.freeze()


def begin() -> None:
    """At the start of the process, import torch in a thread, while the browser still loads."""

    def work() -> None:
        import torch

        # Inputs are small, users may be several: more threads a forward pass only contend.
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))

    threading.Thread(target=work, daemon=True, name="damcha-torch").start()
