"""Inspect: the cross-head metric of one input, what the model saw, and what it answers."""

from __future__ import annotations

import numpy as np
import streamlit as st

from app import cache, state, widgets
from app.state import session
from damcha import gallery
from damcha.analysis.geometry import DEFINITIONS
from damcha.analysis.inspection import TextAnswer
from damcha.figures.metric import MetricView
from damcha.figures.style import number
from damcha.gallery import Subject

VIEWS: dict[MetricView, str] = {
    "full": "M",
    "head_metrics": "R",
    "symmetric": "Sym.",
    "antisymmetric": "Antisym.",
    "diagonal": "Diag.",
    "off_diagonal": "Off-diag.",
    "difference": "M − mean",
}
# What each view shows, for a reader who has not seen the formula.
WORDS: dict[MetricView, str] = {
    "full": "Cell (i, j) of block (a, b): how strongly channel i of head a, of a query, meets "
    "channel j of head b, of a key.",
    "head_metrics": "R_a = Σ_b M_ab, the sum of block row a: head a scores query x against key y "
    "as x R_a yᵀ / √e.",
    "symmetric": "(M + Mᵀ)/2: the part that scores x against y as it scores y against x.",
    "antisymmetric": "(M − Mᵀ)/2: the part that changes sign when query and key are exchanged.",
    "diagonal": "The blocks M_aa: each head with itself.",
    "off_diagonal": "The blocks M_ab, a ≠ b: what crosses heads.",
    "difference": "This input's M minus the mean over held-out inputs: what is particular to it.",
}


def page() -> None:
    """Draw the page for the last result."""
    subject = session().shown
    if subject is None:
        st.markdown("#### Nothing to show yet")
        st.caption("Choose a run and an input in the sidebar.")
        return
    name = f"{subject.run.name}, epoch {subject.epoch}, {subject.example.name}"
    st.markdown(f"#### {widgets.plain(name)}")
    if subject.inspection.metrics is not None:
        metric(subject)
    else:
        kind = subject.run.config.model.attention.upper()
        st.info(
            f"This run uses {kind}: its heads share no cross-head metric, so there is none to "
            "show. Its attention and its answer are here.",
            icon=":material/info:",
        )
        left, right = st.columns([3, 2], gap="large")
        with left:
            attention(subject, beside=False)
        with right:
            answer(subject)
    more(subject)


@st.fragment
def metric(subject: Subject) -> None:
    """The metric beside the input, the answer and the numbers."""
    s = session()
    left, right = st.columns([3, 2], gap="large")
    position = 0
    with left, widgets.guard("The metric"):
        views = [view for view in VIEWS if not gallery.unfit(subject.run, view)]
        if subject.reference is None:
            views.remove("difference")
        st.segmented_control(
            "View of the metric",
            views,
            key=state.bind("view", views),
            format_func=VIEWS.__getitem__,
            label_visibility="collapsed",
        )
        controls = st.columns([3, 2], gap="medium")
        with controls[0]:
            position = _position(subject)
        with controls[1]:
            block = _block(subject)
        figure = gallery.metric(subject, s.view, s.layer, position, block)
        widgets.show(figure, "metric", 600, words=WORDS[s.view])
        note = gallery.metric_note(subject)
        if note and s.view != "head_metrics":
            st.caption(f":material/info: {widgets.plain(note)}")
        numbers(subject, position)
    with right:
        answer(subject)
        with widgets.guard("The blocks"):
            blocks(subject, position)
    state.write_url(subject)


def _position(subject: Subject) -> int:
    labels = widgets.served(subject)
    last = len(labels) - 1
    key = state.bind("position", range(last + 1), last)
    if last == 0:
        return 0
    chosen: int = st.select_slider(
        "Position",
        range(last + 1),
        key=key,
        format_func=labels.__getitem__,
        help="A causal metric may use only the tokens so far: it is refreshed along the input, "
        "and each refresh serves the queries named here.",
    )
    return chosen


def _block(subject: Subject) -> tuple[int, int] | None:
    h, heads = subject.n_heads, session().view == "head_metrics"
    blocks = [(), *(((a, a) for a in range(h)) if heads else np.ndindex(h, h))]

    def name(block: tuple[int, ...]) -> str:
        if not block:
            return "All heads" if heads else "Whole"
        return f"Head {block[0]}" if heads else f"Block {block[0]}, {block[1]}"

    st.selectbox(
        "Part",
        blocks,
        key=state.bind("block", blocks),
        format_func=name,
        help="One block alone: query head, key head.",
    )
    block = session().block
    return (block[0], block[1]) if block else None


def answer(subject: Subject) -> None:
    """What the model sees, and what it answers."""
    with widgets.guard("The answer"):
        widgets.seen(subject)
        given = subject.inspection.answer
        if isinstance(given, TextAnswer):
            widgets.show(gallery.surprise(subject), "surprise", 400)
            st.caption(widgets.continued(subject.run))
            st.code(given.continuation or " ", language=None, wrap_lines=True)
        widgets.show(gallery.answer(subject), "answer", 400)


def numbers(subject: Subject, position: int) -> None:
    """The geometry of the metric."""
    s = session()
    found = cache.geometry(subject, s.layer, position)
    positive, zero, negative = found.signature
    rows = {
        "norm": ("Norm", number(found.norm)),
        "diagonal_share": ("Diagonal", f"{found.diagonal_share:.1%}"),
        "symmetric_share": ("Symmetric", f"{found.symmetric_share:.1%}"),
        "signature": ("Signature", f"{positive} / {zero} / {negative}"),
        "effective_rank": ("Effective rank", number(found.effective_rank)),
        "stable_rank": ("Stable rank", number(found.stable_rank)),
        "condition_number": ("Condition", number(found.condition_number)),
        "eigenvalues": ("Largest |λ|", number(float(abs(found.eigenvalues[0])))),
    }
    if gallery.unfit(subject.run, "symmetric"):
        for name in ("symmetric_share", "signature", "eigenvalues"):
            del rows[name]
    columns = st.columns(4, gap="small")
    for k, (name, (label, value)) in enumerate(rows.items()):
        columns[k % 4].markdown(f"{label}  \n**{widgets.plain(value)}**", help=DEFINITIONS[name])


def blocks(subject: Subject, position: int) -> None:
    """The norm of each block; a click opens the block."""
    s = session()
    # A new key with every block: else plotly would keep its cell selected, and a second click on
    # it would only undo that.
    widgets.show(
        gallery.metric(subject, "blocks", s.layer, position),
        "-".join(map(str, ("blocks", *s.block))),
        400,
        words="‖M_ab‖, the norm of each block. Click a cell to open its block.",
        on_click=_open_block,
    )


def _open_block(chart: str) -> None:
    cell = state.clicked(chart)
    if cell is not None:
        if session().view == "head_metrics":
            state.assign("view", "full")
        state.assign("block", cell)


@st.fragment
def attention(subject: Subject, beside: bool) -> None:
    """Attention maps of any layer and head, whole and over the input."""
    s = session()
    with widgets.guard("Attention"):
        tokens = subject.inspection.tokens
        layers, heads = range(subject.run.config.model.n_layers), range(subject.n_heads)
        columns = st.columns([3, 5, 6] if beside else [3, 5], gap="medium")
        with columns[0]:
            _choose("Layer", layers, "attention_layer")
        with columns[1]:
            _choose("Head", heads, "attention_head")
        queries = range(len(tokens))
        key = state.bind("attention_query", queries, len(tokens) - 1)
        if len(tokens) > 1:
            (columns[2] if beside else st).select_slider(
                "Query", queries, key=key, format_func=lambda k: f"{k}: {tokens[k]}"
            )
        maps = cache.attention_maps(subject, s.device, s.attention_layer)
        left, right = st.columns(2, gap="large") if beside else (st.container(), st.container())
        with left:
            whole = gallery.attention(subject, s.attention_layer, s.attention_head, maps)
            widgets.show(whole, "attention", 500)
        with right:
            over = gallery.attention_over_input(
                subject, s.attention_layer, s.attention_head, s.attention_query, maps
            )
            widgets.show(over, "attention-over-input", 500)
    state.write_url(subject)


def _choose(label: str, options: range, name: str) -> None:
    """Offer buttons where they fit on a line, else a list."""
    key = state.bind(name, options)
    if len(options) <= 8:
        st.segmented_control(label, options, key=key)
    else:
        st.selectbox(label, options, key=key)


def more(subject: Subject) -> None:
    """Attention, spectrum, training curves, card: drawn when opened, so the metric comes first."""
    s = session()
    if subject.inspection.metrics is not None:
        chosen = (s.attention_layer, s.attention_head) != (0, 0)  # by a link, or earlier
        part = st.expander(
            "Attention maps", key="attention-part", expanded=chosen, on_change="rerun"
        )
        if part.open:
            with part:
                attention(subject, beside=True)
        part = st.expander("Spectrum of M", key="spectrum-part", on_change="rerun")
        if part.open:
            with part, widgets.guard("The spectrum"):
                widgets.show(gallery.spectrum(subject, s.layer, s.position), "spectrum", 900)
    part = st.expander("Training curves", key="curves-part", on_change="rerun")
    if part.open:
        with part, widgets.guard("The curves"):
            widgets.show(gallery.curves([subject.run]), "curves", 700)
    part = st.expander("About this run", key="card-part", on_change="rerun")
    if part.open:
        with part, widgets.guard("The card"):
            for note in subject.run.notes:
                st.caption(widgets.plain(note))
            # As text: a card comes with somebody's run, and could point at pictures elsewhere.
            st.code(subject.run.card or "This run has no card.", language=None, wrap_lines=True)


page()
