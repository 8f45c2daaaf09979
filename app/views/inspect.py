"""Inspect: the cross-head metric of one input, what the model saw, and what it answers."""

from __future__ import annotations

import numpy as np
import streamlit as st

from app import cache, state, widgets
from app.state import session
from damcha import gallery
from damcha.analysis.geometry import DEFINITIONS
from damcha.figures.style import number

VIEWS = {
    "full": "M",
    "head_metrics": "R",
    "symmetric": "Symmetric",
    "antisymmetric": "Antisymmetric",
    "diagonal": "Diagonal",
    "off_diagonal": "Off-diagonal",
    "difference": "M − mean",
    "blocks": "Norms",
}


def page() -> None:
    """Draw the page for the last result."""
    subject = session().shown
    if subject is None:
        st.markdown("#### Nothing to show yet")
        st.caption("Choose a run and an input in the sidebar.")
        return
    model = subject.run.config.model
    st.markdown(
        f"#### {widgets.plain(subject.run.name)}, epoch {subject.epoch}, "
        f"{widgets.plain(subject.example.name)}"
    )
    if subject.inspection.metrics is None:
        left, right = st.columns([11, 9], gap="large")
        with left:
            st.info(
                f"This run uses {model.attention.upper()}: its heads do not share a cross-head "
                "metric, so there is none to show. Attention and answer are below.",
                icon=":material/info:",
            )
            attention()
        with right:
            answer()
    else:
        metric()
        st.divider()
        attention()
    more()


@st.fragment
def metric() -> None:
    """The metric beside the input, the answer and the numbers."""
    s = session()
    subject = s.shown
    left, right = st.columns([11, 9], gap="large")
    with left, widgets.guard("The metric"):
        views = [v for v in VIEWS if v != "difference" or subject.reference is not None]
        st.segmented_control(
            "View of the metric", views, key=state.bind("view", views),
            format_func=VIEWS.__getitem__, label_visibility="collapsed",
        )
        position = _position(subject)
        chart = st.container()
        block = _block(subject)
        with chart:
            figure = gallery.metric(subject, s.view, s.layer, position, block)
            widgets.show(figure, "metric", 620)
    with right:
        answer()
        with widgets.guard("The numbers"):
            numbers(subject, position)
    state.write_url(subject)


def _position(subject: gallery.Subject) -> int:
    labels = subject.inspection.position_labels
    last = len(labels) - 1
    key = state.bind("position", range(last + 1), last)
    if last == 0:
        return 0
    return int(
        st.select_slider(
            "Queries served", range(last + 1), key=key, format_func=lambda k: labels[k],
            help="A causal metric may use only the tokens so far: it is refreshed along the "
            "input, and each refresh serves the queries named here.",
        )
    )


def _block(subject: gallery.Subject) -> tuple[int, int] | None:
    s = session()
    h = subject.n_heads
    if s.view == "blocks":
        return None
    if s.view == "head_metrics":
        blocks = [None, *((a, a) for a in range(h))]
    else:
        blocks = [None, *np.ndindex(h, h)]
    st.selectbox(
        "Part", blocks, key=state.bind("block", blocks),
        format_func=lambda b: "all heads" if b is None else f"query head {b[0]}, key head {b[1]}",
    )
    return s.block


def answer() -> None:
    """What the model sees, and what it answers."""
    subject = session().shown
    with widgets.guard("The answer"):
        widgets.seen(subject)
        widgets.show(gallery.answer(subject), "answer", 460)
        if subject.run.task == "language_modelling":
            widgets.show(gallery.surprise(subject), "surprise", 460)


def numbers(subject: gallery.Subject, position: int) -> None:
    """The geometry of the metric."""
    found = cache.geometry(subject, session().layer, position)
    positive, zero, negative = found.signature
    rows = {
        "norm": ("Norm", number(found.norm)),
        "diagonal_share": ("Diagonal share", f"{found.diagonal_share:.1%}"),
        "symmetric_share": ("Symmetric share", f"{found.symmetric_share:.1%}"),
        "signature": ("Signature + 0 −", f"{positive} {zero} {negative}"),
        "effective_rank": ("Effective rank", number(found.effective_rank)),
        "stable_rank": ("Stable rank", number(found.stable_rank)),
        "condition_number": ("Condition number", number(found.condition_number)),
    }
    for name, (label, value) in rows.items():
        st.markdown(f"{label} **{value}**", help=DEFINITIONS[name])


@st.fragment
def attention() -> None:
    """Attention maps of any layer and head, whole and over the input."""
    s = session()
    subject = s.shown
    with widgets.guard("Attention"):
        layer = st.segmented_control(
            "Layer", range(subject.run.config.model.n_layers),
            key=state.bind("attention_layer", range(subject.run.config.model.n_layers)),
        )
        st.segmented_control(
            "Head", range(subject.n_heads), key=state.bind("attention_head", range(subject.n_heads))
        )
        tokens = subject.inspection.tokens
        st.select_slider(
            "Query", range(len(tokens)), format_func=lambda k: f"{k}: {tokens[k]}",
            key=state.bind("attention_query", range(len(tokens)), len(tokens) - 1),
        )
        maps = cache.attention_maps(subject, s.device, s.attention_layer)
        left, right = st.columns(2, gap="large")
        with left:
            widgets.show(
                gallery.attention(subject, maps, s.attention_layer, s.attention_head), "map", 520
            )
        with right:
            widgets.show(
                gallery.attention_over_input(
                    subject, maps, s.attention_layer, s.attention_head, s.attention_query
                ),
                "over", 520,
            )
    state.write_url(subject)


def more() -> None:
    """Training curves, the spectrum and the card."""


page()
