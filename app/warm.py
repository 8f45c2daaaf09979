"""Loading what is slow where nobody waits for it."""

from __future__ import annotations

import gc
import os
import sys
import threading

import streamlit as st

_lock = threading.Lock()
_done: set[str] = set()


def start() -> None:
    """On the first run of the process, import torch while the browser loads plotly.

    An empty chart, seen for a moment, makes the browser fetch its plotting code (about a second);
    Python imports torch in that time.
    """
    if "torch" in sys.modules:
        return
    slot = st.empty()
    slot.plotly_chart(
        {
            "data": [{"type": "scatter", "x": [], "y": []}],
            "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}},
        },
        config={"staticPlot": True},
    )
    import torch

    # Inputs are small and users may be several: more threads a forward pass would only contend.
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
