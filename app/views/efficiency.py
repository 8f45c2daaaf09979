"""Efficiency: what each mechanism costs on this machine, beside MHA."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import state, widgets
from app.state import session

KINDS = {"layer": "A layer", "stack": "A stack of 4 blocks"}
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
WIDTHS = (64, 128, 256, 512, 1024)


def page() -> None:
    """Choose what to measure; measure; show."""
    s = session()
    st.markdown("#### What attention costs")
    with widgets.guard("The measurement"):
        from damcha.analysis.scaling import PUBLISHED, measure
        from damcha.attention import ATTENTIONS
        from damcha.checkpoint import pick_device

        left, middle, right = st.columns([5, 3, 3], gap="medium")
        with left:
            chosen = st.multiselect(
                "Mechanisms", list(ATTENTIONS), list(s.bench_attentions or PUBLISHED),
                key="bench-attentions", help="MHA is always measured: ratios are to it.",
            )  # fmt: skip
        with middle:
            lengths = st.multiselect(
                "Tokens L", LENGTHS, list(s.bench_lengths), key="bench-lengths", max_selections=5
            )
        with right:
            widths = st.multiselect(
                "Width d", WIDTHS, list(s.bench_widths), key="bench-widths", max_selections=3
            )
        s.bench_attentions = tuple(chosen)
        s.bench_lengths, s.bench_widths = tuple(sorted(lengths)), tuple(sorted(widths))
        st.segmented_control(
            "What", list(KINDS), key=state.bind("bench_kind", list(KINDS)),
            format_func=KINDS.__getitem__, label_visibility="collapsed",
        )  # fmt: skip
        if not lengths or not widths:
            st.caption("Choose a length and a width.")
            return
        asked: dict[str, Any] = {
            "attentions": s.bench_attentions, "seq_lens": s.bench_lengths,
            "d_models": s.bench_widths, "kind": s.bench_kind, "batch": 4, "repeats": 5,
            "device": str(pick_device(s.device)),
        }  # fmt: skip
        found = widgets.long(("bench", *asked.values()), lambda: measure(**asked), "Measure")
        if found is None:
            st.caption(
                "Runs on the device chosen in the sidebar, causal, batch 4. All mechanisms take "
                "turns, and what is shown are medians of paired ratios: whatever else the machine "
                "does meets all alike."
            )
            return
        shown(found)


def shown(found: Any) -> None:
    """Figure and table."""
    from damcha.figures.scaling import scaling_figure, scaling_table

    s = session()
    both = len(s.bench_lengths) > 1 and len(s.bench_widths) > 1
    over = None
    if both:
        axes = {"seq_len": "Over L", "d_model": "Over d"}
        st.segmented_control(
            "Over", list(axes), key=state.bind("bench_over", list(axes)),
            format_func=axes.__getitem__, label_visibility="collapsed",
        )  # fmt: skip
        over = s.bench_over
    widgets.show(scaling_figure(found, made(found), over=over), "efficiency", 1150)
    widgets.table(scaling_table(found), "efficiency")


def made(found: Any) -> Any:
    """Where the numbers come from: this machine, and the command that measures anew."""
    from damcha import __version__
    from damcha.figures.spec import Provenance

    s = session()
    words = ["damcha", "bench", "mechanisms", "--batch", "4", "--repeats", "5"]
    words += [word for name in s.bench_attentions for word in ("--attention", name)]
    words += [word for n in s.bench_lengths for word in ("--seq-len", str(n))]
    words += [word for n in s.bench_widths for word in ("--d-model", str(n))]
    words += ["--stack"] * (found.kind == "stack")
    return Provenance(
        settings={"device": found.device, "threads": found.threads, "torch": found.torch},
        version=__version__,
        command=" ".join([*words, "--figure", "efficiency.pdf"]),
    )


page()
