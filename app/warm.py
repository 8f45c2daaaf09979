"""Loading what is slow where nobody waits for it."""

from __future__ import annotations

import gc
import os
import sys
import threading

import streamlit as st

_once = threading.Lock()
_state = {"frozen": False}


def start() -> None:
    """On the first run of the process: let the browser fetch its plotting code meanwhile.

    An empty chart makes the browser load plotly (about a second) while Python imports torch.
    """
    if "torch" in sys.modules:
        return
    import torch

    # Inputs are small and users are several: more threads a forward pass only contend.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))


def freeze() -> None:
    """Once, after the first picture: prepare exports, and spare the garbage collector torch.

    Streamlit collects all garbage after every run of the script; with torch's objects among them
    that holds the interpreter about 100 ms.
    """
    with _once:
        if _state["frozen"]:
            return
        _state["frozen"] = True
    threading.Thread(target=_prepare, daemon=True, name="damcha-warm").start()


def _prepare() -> None:
    from damcha.figures import paper, sidecar  # noqa: F401

    gc.collect()
    gc.freeze()
