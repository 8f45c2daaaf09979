"""Contributions: which part of the metric carries the answer."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import cache, state, widgets
from app.state import session
from damcha.analysis.contributions import METHODS
from damcha.figures.contributions import VIEWS
from damcha.gallery import Subject, contributions

TARGETS = {
    "loss": "The loss",
    "class": "A class",
    "token": "A token",
    "patch": "A patch's error",
}
FITS = {
    "image_autoregression": ("loss", "patch"),
    "image_reconstruction": ("loss", "patch"),
    "language_modelling": ("loss", "token"),
    "sequence_to_sequence": ("loss", "token"),
    "image_classification": ("loss", "class"),
}
WORDS = {
    "gradient_x_value": "M ⊙ ∂F/∂M: how F would change, to first order, if an entry grew in "
    "proportion to itself. Blue entries lower F, red ones raise it.",
    "integrated_gradients": "The gradient integrated from the baseline metric to M, times the way: "
    "contributions add up to the change of F.",
    "gradient": "∂F/∂M alone, whatever the entry's own size.",
}


def page() -> None:
    """Choose what is explained and how; draw."""
    subject = session().shown
    if subject is None:
        st.markdown("#### No input yet")
        st.caption("Choose a run and an input in the sidebar.")
        return
    name = f"{subject.run.name}, epoch {subject.epoch}, {subject.example.name}"
    st.markdown(f"#### Which part carries the answer: {widgets.plain(name)}")
    if subject.inspection.metrics is None:
        widgets.no_metric(subject)
        return
    chosen(subject)


@st.fragment
def chosen(subject: Subject) -> None:
    """The controls and what they choose."""
    s = session()
    columns = st.columns(4, gap="medium")
    with columns[0]:
        targets = FITS[subject.run.task]
        st.selectbox(
            "Explain",
            targets,
            key=state.bind("contributions_target", targets),
            format_func=TARGETS.__getitem__,
            help="F, the number whose causes in the metric are looked for.",
        )
    with columns[1]:
        which(subject)
    with columns[2]:
        st.selectbox(
            "Method",
            list(METHODS),
            key=state.bind("contributions_method", list(METHODS)),
            format_func=METHODS.__getitem__,
            help=WORDS[s.contributions_method],
        )
    with columns[3]:
        starts = ["zero"] + ["mean"] * (subject.reference is not None)
        if s.contributions_method == "integrated_gradients":
            st.selectbox(
                "From",
                starts,
                key=state.bind("contributions_baseline", starts),
                format_func={"zero": "the zero metric", "mean": "the data-set mean"}.__getitem__,
            )
    lower = st.columns([6, 3, 2, 3], gap="medium", vertical_alignment="bottom")
    with lower[0]:
        st.segmented_control(
            "View",
            list(VIEWS),
            key=state.bind("contributions_view", list(VIEWS)),
            format_func=VIEWS.__getitem__,
        )
    with lower[1]:
        layers = (-1, *range(subject.run.config.model.n_layers))
        if s.contributions_view in ("blocks", "metric"):
            st.selectbox(
                "Layer",
                layers,
                key=state.bind("contributions_layer", layers),
                format_func=lambda k: "sum of all" if k < 0 else str(k),
            )
    with lower[2]:
        st.checkbox("Absolute", key=state.bind("contributions_absolute"))
    with lower[3]:
        others = ["", *(r.name for r in cache.companions(subject.run) if r != subject.run)]
        st.selectbox(
            "Beside it",
            others,
            key=state.bind("contributions_beside", others),
            format_func=lambda name: name or "nothing",
            help="Another run at one scale: sharing off (…-unshared) against sharing on.",
        )
    with widgets.guard("The contributions"):
        draw(subject)
    state.write_url(subject)


def which(subject: Subject) -> None:
    """Draw the picker of the class, byte or patch."""
    s = session()
    if s.contributions_target == "loss":
        return
    data, labels = subject.run.config.data, subject.example.labels
    names = labels if s.contributions_target != "class" else data.class_names
    count = data.n_classes if s.contributions_target == "class" else len(labels)
    options = range(count)
    st.selectbox(
        "Which",
        options,
        key=state.bind("contributions_index", options, options[-1]),
        format_func=lambda k: f"{k}: {names[k]}" if k < len(names) else str(k),
    )


def draw(subject: Subject) -> None:
    """The chosen figure."""
    s = session()
    options: dict[str, Any] = {
        "target": s.contributions_target,
        "index": 0 if s.contributions_target == "loss" else s.contributions_index,
        "method": s.contributions_method,
        "baseline": s.contributions_baseline,
    }
    found = cache.contributions(subject, *options.values())
    if s.contributions_beside and s.given is not None:
        runs = {run.name: run for run in cache.companions(subject.run)}
        other_run = runs[s.contributions_beside]
        other = cache.subject(other_run, other_run.epochs[-1], s.device, s.given, s.invert, s.frame)
        pair = (cache.contributions(other, *options.values()), found)
        figure = contributions.comparison(
            other, subject, s.contributions_absolute, **options, results=pair
        )
        widgets.show(figure, "contributions", 1200)
        return
    layer = s.contributions_layer if s.contributions_layer >= 0 else None
    figure = contributions.figure(
        subject, s.contributions_view, layer, s.contributions_absolute, **options, result=found
    )
    widgets.show(figure, "contributions", 1200 if s.contributions_view == "layers" else 640)
    for note in contributions.notes(subject, found):
        st.caption(f":material/info: {widgets.plain(note)}")
    st.caption(WORDS[s.contributions_method])


page()
