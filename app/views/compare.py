"""Compare: two inputs, two epochs or two runs."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app import cache, state, widgets
from app.state import Given, session
from damcha.analysis.comparison import DEFINITIONS
from damcha.figures.style import number
from damcha.gallery import Subject, comparison

PARTS = {
    "metrics": "Metrics",
    "spectra": "Spectra",
    "angles": "Subspaces",
    "transplant": "Transplant",
}
VIEWS = {"full": "M", "head_metrics": "R", "blocks": "Block norms", "symmetric": "Symmetric part"}
KINDS = {"same": "The same input", "sample": "Another sample", "upload": "Upload", "text": "Write"}


def page() -> None:
    """Side A is the sidebar's; side B is chosen here."""
    subject = session().shown
    if subject is None or session().given is None:
        st.markdown("#### No input yet")
        st.caption("Choose a run and an input in the sidebar.")
        return
    st.markdown("#### Two metrics")
    if subject.inspection.metrics is None:
        widgets.no_metric(subject)
        return
    chosen(subject)


@st.fragment
def chosen(subject: Subject) -> None:
    """The second side, and the comparison."""
    s = session()
    with widgets.guard("The second side"):
        other = second(subject)
    if other is None:
        st.caption("Nothing to compare with yet: give the second input.")
        return
    names = comparison.names_of(subject, other)
    st.caption(f"**A** {widgets.plain(names[0])}   **B** {widgets.plain(names[1])}")
    st.segmented_control(
        "Part",
        list(PARTS),
        key=state.bind("compare_part", list(PARTS)),
        format_func=PARTS.__getitem__,
        label_visibility="collapsed",
    )
    with widgets.guard("The comparison"):
        if s.compare_part == "transplant":
            transplant(subject, other)
        else:
            shapes(subject, other)
    state.write_url(subject)


def second(subject: Subject) -> Subject | None:
    """Draw the pickers of side B and return it."""
    s = session()
    runs = {run.name: run for run in cache.takers(subject.run)}
    columns = st.columns(4, gap="medium")
    with columns[0]:
        st.selectbox("B: run", list(runs), key=state.bind("compare_run", list(runs), s.run))
    run = runs[s.compare_run]
    with columns[1]:
        key = state.bind("compare_epoch", run.epochs, run.epochs[-1])
        st.selectbox("B: epoch", run.epochs, key=key)
    is_text = run.task == "language_modelling"
    kinds = ["same", *["sample"] * bool(run.samples), "text" if is_text else "upload"]
    with columns[2]:
        st.selectbox(
            "B: input",
            kinds,
            key=state.bind("compare_kind", kinds, "sample"),
            format_func=KINDS.__getitem__,
        )
    with columns[3]:
        given = other_input(subject, {path.name: path for path in run.samples})
        layers = range(run.config.model.n_layers)
        if run.config.model.metric.sharing != "stack":
            st.selectbox("B: layer", layers, key=state.bind("compare_layer", layers))
        else:
            s.compare_layer = 0
    if given is None:
        return None
    return cache.subject(run, s.compare_epoch, s.device, given, False, 0)


def other_input(subject: Subject, samples: dict[str, Path]) -> Given | None:
    """Draw the picker of side B's input."""
    s = session()
    if s.compare_kind == "same":
        return s.given
    if s.compare_kind == "sample":
        names = list(samples)
        usual = next((name for name in names if name != s.sample), names[0])
        st.selectbox("B: sample", names, key=state.bind("compare_sample", names, usual))
        return cache.sample(*widgets.at(samples[s.compare_sample]))
    if s.compare_kind == "text":
        st.text_input("B: text", key=state.bind("compare_text"))
        return Given.of("text", "text", s.compare_text.encode()) if s.compare_text else None
    file = st.file_uploader("B: picture", key="compare-picture")
    if file is not None:
        s.compare_upload = Given.of("upload", file.name, file.getvalue())
    return s.compare_upload


def shapes(subject: Subject, other: Subject) -> None:
    """The metrics themselves: entries, spectra, subspaces, distances."""
    s = session()
    options = {"layer": s.layer, "other_layer": s.compare_layer, "position": s.position}
    if other.run.config.model.metric.sharing == "stack":
        options["other_layer"] = 0
    places = min(
        one.inspection.metrics.shape[1]
        for one in (subject, other)
        if one.inspection.metrics is not None
    )
    options["position"] = min(s.position, places - 1) if s.position >= 0 else -1
    if s.compare_part == "spectra":
        widgets.show(comparison.spectra(subject, other, **options), "spectra", 1100)
        return
    if s.compare_part == "angles":
        ranks = range(1, subject.run.config.model.d_head + 1)
        st.select_slider("Leading directions", ranks, key=state.bind("compare_rank", ranks, 2))
        widgets.show(comparison.angles(subject, other, s.compare_rank, **options), "angles", 620)
        return
    st.segmented_control(
        "View of the metrics",
        list(VIEWS),
        key=state.bind("compare_view", list(VIEWS)),
        format_func=VIEWS.__getitem__,
        label_visibility="collapsed",
    )
    figure = comparison.side_by_side(subject, other, s.compare_view, **options)
    widgets.show(figure, "compare", 1200)
    found = comparison.numbers(subject, other, **options)
    columns = st.columns(len(DEFINITIONS), gap="small")
    for column, (name, words) in zip(columns, DEFINITIONS.items(), strict=True):
        value = getattr(found, name)
        text = (
            ", ".join(f"{part:.0%}" for part in value)
            if isinstance(value, tuple)
            else number(value)
        )
        label = name.replace("_", " ").capitalize()
        column.markdown(f"{label}  \n**{widgets.plain(text)}**", help=words)


def transplant(subject: Subject, other: Subject) -> None:
    """Each input with the other's metric, both ways."""
    for k, (first, donor) in enumerate(((subject, other), (other, subject))):
        name = widgets.plain(f"{first.example.name} with the metric of {donor.example.name}")
        st.markdown(f"**{name}**")
        with widgets.guard("The transplant"):
            result = cache.swap(first, donor)
            figure = comparison.transplanted(first, donor, result)
            widgets.show(figure, f"transplant-{k}", 620)
            for title, text in zip(result.names, result.continuations, strict=False):
                st.caption(f"{title}: {widgets.plain(text)}")


page()
