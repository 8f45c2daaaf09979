"""Epochs: how the metric of this input grew, beside that of other runs."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import cache, components, state, widgets
from app.state import session
from damcha.analysis.epochs import CURVES
from damcha.errors import DamchaError
from damcha.figures.epochs import FIELDS
from damcha.gallery import Subject, epochs, unfit
from damcha.gallery.epochs import History

FORMS = {
    "heatmap": "Cells",
    "contour": "Contours",
    "animation": "Animation",
    "surface": "3D",
    "surfaces": "3D, all epochs",
    "curves": "Curves",
}


def page() -> None:
    """Choose runs, field and form; draw."""
    s, subject = session(), session().shown
    if subject is None or s.given is None:
        st.markdown("#### No input yet")
        st.caption("Choose a run and an input in the sidebar.")
        return
    st.markdown(f"#### {widgets.plain(subject.example.name)} over the epochs of training")
    if subject.inspection.metrics is None:
        widgets.no_metric(subject)
        return
    chosen(subject)


@st.fragment
def chosen(subject: Subject) -> None:
    """The controls and what they choose."""
    with widgets.guard("The epochs"):
        controls(subject)
        histories = _histories(subject)
        draw(subject, histories)
        for history in histories:
            for epoch, reason in history.broken.items():
                widgets.tell(f"{history.run.name}, epoch {epoch}: {reason}")
    state.write_url(subject)


def controls(subject: Subject) -> None:
    """Runs, field and form."""
    s = session()
    companions = cache.companions(subject.run)
    names = [run.name for run in companions]
    static = subject.run.name.rsplit("-", 1)[0] + "-static"
    usual = tuple(name for name in (static, subject.run.name) if name in names)
    if not s.epochs_runs or not set(s.epochs_runs) <= set(names):
        state.assign("epochs_runs", usual or (subject.run.name,))
    left, middle, right = st.columns([4, 3, 3], gap="medium")
    with left:
        picked = st.multiselect(
            "Runs, a row each", names, list(s.epochs_runs), key="epochs-runs", max_selections=4,
            help="Runs of the same task, data and width; w/o f(x) is the static metric.",
        )  # fmt: skip
        s.epochs_runs = tuple(picked) or (subject.run.name,)
    meet = any(unfit(run, "head_metrics") for run in companions if run.name in s.epochs_runs)
    fields = [field for field in FIELDS if field != "head" or not meet]
    with middle:
        st.selectbox(
            "Field", fields, key=state.bind("epochs_field", fields),
            format_func=lambda field: FIELDS[field].format(head=s.epochs_head),
        )  # fmt: skip
    with right:
        if s.epochs_field == "head":
            heads = range(subject.n_heads)
            st.selectbox("Head", heads, key=state.bind("epochs_head", heads))
        else:
            st.slider(
                "Smoothing", 0.0, 3.0, step=0.5, key=state.bind("epochs_smoothing"),
                help="Standard deviation of a Gaussian in cells; the caption says so. 0: none.",
            )  # fmt: skip
    st.segmented_control(
        "Form", list(FORMS), key=state.bind("epochs_form", list(FORMS)),
        format_func=FORMS.__getitem__, label_visibility="collapsed",
    )  # fmt: skip


def _histories(subject: Subject) -> list[History]:
    s = session()
    assert s.given is not None
    found = []
    runs = {run.name: run for run in cache.companions(subject.run)}
    with st.spinner("Running the input through every snapshot", show_time=False):
        for name in s.epochs_runs:
            try:
                history = cache.history(runs[name], s.device, s.given, s.invert, s.frame)
                found.append(history)
            except DamchaError as error:
                widgets.tell(f"{name}: {error}")
    return found


def draw(subject: Subject, histories: list[History]) -> None:
    """The chosen form."""
    s = session()
    if not histories:
        return
    several = max(len(history.subjects) for history in histories) > 1
    options: dict[str, Any] = {"field": s.epochs_field, "head": s.epochs_head, "layer": s.layer,
               "position": s.position, "smoothing": s.epochs_smoothing}  # fmt: skip
    if s.epochs_form in ("contour", "heatmap"):
        widgets.show(
            epochs.small_multiples(histories, form=s.epochs_form, **options), "epochs", 1200
        )
    elif s.epochs_form == "animation":
        figures, labels = epochs.animation(histories, **options)
        if figures:
            widgets.show_frames(figures, labels, "epochs", 420 * len(histories))
        else:
            st.info("These runs have no epoch in common.", icon=":material/info:")
    elif s.epochs_form == "surface":
        surfaces(histories, several, options)
    elif s.epochs_form == "surfaces":
        columns = st.columns(3, gap="medium")
        options |= camera(*columns[1:])
        with st.spinner("Drawing the landscapes", show_time=False):
            figure = epochs.small_multiples(histories, form="surfaces", **options)
            widgets.show(figure, "epochs", 1200)
    else:
        widgets.show(epochs.curves(histories, s.layer, s.position), "epoch-curves", 1200)
        with st.expander("What these numbers are"):
            for name, words in CURVES.items():
                st.caption(f"**{name.replace('_', ' ').capitalize()}**: {words}.")
    if not several:
        st.caption("There is one epoch only, so there is no growth to see.")


def surfaces(histories: list[History], several: bool, options: dict[str, Any]) -> None:
    """Landscapes of one epoch, a run each; the camera is kept when the epoch changes."""
    s = session()
    there = sorted({one.epoch for history in histories for one in history.subjects})
    columns = st.columns(3, gap="medium")
    with columns[0]:
        if several:
            st.select_slider("Epoch shown", there, key=state.bind("epochs_at", there, there[-1]))
    options |= camera(*columns[1:])
    figure = epochs.surface(histories, s.epochs_at if several else there[-1], **options)
    widgets.show(figure, "surface", 1200)
    components.camera("surface", "surface-camera", lambda: state.turned("surface-camera"))


def camera(left: Any, right: Any) -> dict[str, float]:
    """From where landscapes are seen."""
    s = session()
    with left:
        st.slider("Around", -180, 180, key=state.bind("epochs_azimuth"), format="%d°")
    with right:
        st.slider("Above", 0, 90, key=state.bind("epochs_elevation"), format="%d°")
    return {"azimuth": float(s.epochs_azimuth), "elevation": float(s.epochs_elevation)}


page()
