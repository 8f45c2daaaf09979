"""Loading what is slow where nobody waits for it."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from pathlib import Path

import streamlit as st

THREADS = max(1, (os.cpu_count() or 2) // 2)
"""Threads of one forward pass."""
_lock = threading.Lock()
_done: set[str] = set()


def begin() -> None:
    """At the start of the process, import torch in a thread, while the browser still loads.

    What was imported is then kept from the garbage collector: Streamlit calls it after every run of
    a script, and with torch's objects it would stop the interpreter for about 100 ms.
    """
    # A page is some 90 small files, and the server waits for the interpreter several times at each:
    # with Python's usual 5 ms, a script that runs at the same time delays the page by a second.
    sys.setswitchinterval(0.0005)
    # Inputs are small, users may be several: more threads a forward pass only contend. By the
    # environment, because each of Streamlit's threads would start with torch's default otherwise.
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    threading.Thread(target=_torch, daemon=True, name="damcha-torch").start()


def _torch() -> None:
    import torch  # noqa: F401

    import damcha.gallery  # noqa: F401

    gc.freeze()


def threads() -> int:
    """Return how many threads the numbers on the pages are computed with."""
    return int(os.environ.get("OMP_NUM_THREADS", THREADS))


@functools.cache
def plotly_address() -> str:
    """Where the browser finds Streamlit's plotting code, to fetch it once it is idle; "" if not."""
    folder = Path(st.__file__).parent / "static"
    found = sorted(folder.glob("static/js/PlotlyChart.*.js"))
    return f"./{found[0].relative_to(folder).as_posix()}" if found else ""


def finish() -> None:
    """After the first picture of the process, prepare what exports and other pages need."""
    with _lock:
        if _done:
            return
        _done.add("finish")
    later = threading.Timer(5, _prepare)  # the browser, which draws now, needs the processor
    later.daemon = True
    later.start()


def _prepare() -> None:
    import scipy.linalg  # noqa: F401

    from damcha.figures import paper, sidecar  # noqa: F401

    gc.collect()
    gc.freeze()
