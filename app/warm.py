"""Loading what is slow where nobody waits for it."""

from __future__ import annotations

import functools
import gc
import os
import threading
from pathlib import Path

import streamlit as st

_lock = threading.Lock()
_done: set[str] = set()


def begin() -> None:
    """At the start of the process, import torch in a thread, while the browser still loads."""
    threading.Thread(target=_torch, daemon=True, name="damcha-torch").start()


def _torch() -> None:
    import torch

    # Inputs are small, users may be several: more threads a forward pass only contend.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    import damcha.gallery  # noqa: F401


@functools.cache
def plotly_address() -> str:
    """Where the browser finds Streamlit's plotting code, to fetch it once it is idle; "" if not."""
    folder = Path(st.__file__).parent / "static"
    found = sorted(folder.glob("static/js/PlotlyChart.*.js"))
    return f"./{found[0].relative_to(folder).as_posix()}" if found else ""


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
