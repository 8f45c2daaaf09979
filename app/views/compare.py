"""Compare: two inputs, two epochs or two runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from app import cache, state, widgets
from app.state import Given, session
from damcha.analysis.comparison import DEFINITIONS, INDEFINITE, Distances
from damcha.figures.comparison import MEASURES
from damcha.figures.style import number
from damcha.gallery import Subject, comparison, unfit
from damcha.gallery.subject import BASES

PARTS = {
    "metrics": "Metrics",
    "spectra": "Spectra",
    "angles": "Subspaces",
    "transplant": "Transplant",
}
VIEWS = {"full": "M", "head_metrics": "R", "blocks": "Block norms", "symmetric": "Symmetric part"}
KINDS = {
    "same": "The same input",
    "sample": "Another sample",
    "upload": "Upload",
    "text": "Write",
}
LABELS = {
    "frobenius": "Frobenius",
    "relative": "Relative Frobenius",
    "cosine": "Cosine",
    "bures_wasserstein": "Bures–Wasserstein",
    "affine_invariant": "Affine-invariant",
    "log_euclidean": "Log-Euclidean",
    "kept": "Kept of A, of B",
    "not_positive": "Not positive in A, in B",
}
STAND_INS = {"leave_out": "Leave out", "raise": "Raise to 1/100", "absolute": "Absolute values"}
SIDES = {"query": "Queries", "key": "Keys"}


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
    other = None
    with widgets.guard("The second side"):
        other = second(subject)
    if other is None:
        st.caption("Nothing to compare with yet: give the second input.")
        return
    names = comparison.names_of(subject, other, s.layer, s.compare_layer)
    beside(subject, other, names)
    controls = st.columns([3, 2], gap="large", vertical_alignment="bottom")
    with controls[0]:
        st.segmented_control(
            "Part",
            list(PARTS),
            key=state.bind("compare_part", list(PARTS)),
            format_func=PARTS.__getitem__,
            label_visibility="collapsed",
        )
    with controls[1]:
        place = position(subject, other)
    with widgets.guard("The comparison"):
        if s.compare_part == "transplant":
            transplant(subject, other, place)
        elif s.compare_part == "spectra":
            figure = comparison.spectra(subject, other, s.layer, s.compare_layer, place)
            widgets.show(figure, "spectra", 1100)
        elif s.compare_part == "angles":
            angles(subject, other, place)
        else:
            metrics(subject, other, place)
    state.write_url(subject)


# The second side ----------------------------------------------------------------------------------


def second(subject: Subject) -> Subject | None:
    """Draw the pickers of side B and return it."""
    s = session()
    runs = {run.name: run for run in cache.takers(subject.run)}
    columns = st.columns(4, gap="medium")
    with columns[0]:
        key = state.bind("compare_run", list(runs), subject.run.name)
        st.selectbox("B: run", list(runs), key=key, help="Side A is chosen in the sidebar.")
    run = runs[s.compare_run]
    with columns[1]:
        key = state.bind("compare_epoch", run.epochs, run.epochs[-1])
        st.selectbox("B: epoch", run.epochs, key=key)
    is_text = run.config.is_text
    kinds = ["same", *["sample"] * bool(run.samples), "text" if is_text else "upload"]
    with columns[2]:
        key = state.bind("compare_kind", kinds, kinds[1])
        st.selectbox("B: input", kinds, key=key, format_func=KINDS.__getitem__)
    with columns[3]:
        given = other_input({path.name: path for path in run.samples})
        layers = range(run.config.model.n_layers)
        if not run.config.model.metric.differs_by_layer:
            s.compare_layer = 0
        else:
            key = state.bind("compare_layer", layers)
            st.selectbox("B: metric of layer", layers, key=key)
    if given is None:
        return None
    # Side A may have been inverted, or be another frame than the first.
    how = (s.invert, s.frame) if s.compare_kind == "same" else (False, 0)
    return cache.subject(run, s.compare_epoch, s.device, given, *how)


def other_input(samples: dict[str, Path]) -> Given | None:
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
        if not s.compare_text:
            return None
        return Given.of("text", "text", s.compare_text.encode("utf-8", "surrogatepass"))
    file = st.file_uploader("B: picture", key="compare-picture")
    if file is not None:
        s.compare_upload = Given.of("upload", file.name, file.getvalue())
    return s.compare_upload


def beside(subject: Subject, other: Subject, names: tuple[str, str]) -> None:
    """Both inputs, small, with their names."""
    columns = st.columns(2, gap="medium")
    for k, (side, one) in enumerate(zip("AB", (subject, other), strict=True)):
        seen, original = one.example.seen, one.example.original
        words = f"**{side}**  {widgets.plain(names[k])}"
        if isinstance(seen, tuple):
            text = getattr(original, "text", "")
            short = text if len(text) <= 160 else f"{text[:159]}…"
            columns[k].caption(f"{words}  \n{widgets.plain(short)}")
        else:
            picture, name = columns[k].columns([1, 5], gap="small", vertical_alignment="center")
            picture.image(widgets.with_grid(seen, 0, 96), width=72)
            name.caption(words)


def position(subject: Subject, other: Subject) -> int:
    """Draw the picker of the position along the input, for both sides; the one chosen."""
    strides = (subject.inspection.stride, other.inspection.stride)
    if not any(strides) or (session().compare_part == "transplant" and all(strides)):
        return -1  # a transplant of one causal metric for another takes every position
    several = [one for one in (subject, other) if one.inspection.stride]
    served = min((widgets.served(one) for one in several), key=len)
    last = len(served) - 1
    if last == 0:
        return 0
    chosen: int = st.select_slider(
        "Position of both",
        range(last + 1),
        key=state.bind("position", range(last + 1), last),
        format_func=served.__getitem__,
        help="A causal metric may use only the tokens so far: it is refreshed along the input, "
        "and each refresh serves the queries named here.",
    )
    return chosen


# The comparison -----------------------------------------------------------------------------------


def metrics(subject: Subject, other: Subject, place: int) -> None:
    """Entries and distances."""
    s = session()
    runs = (subject.run, other.run)
    views = [view for view in VIEWS if not any(unfit(run, view) for run in runs)]
    st.segmented_control(
        "View of the metrics",
        views,
        key=state.bind("compare_view", views),
        format_func=VIEWS.__getitem__,
        label_visibility="collapsed",
    )
    figure = comparison.side_by_side(
        subject, other, s.compare_view, s.layer, s.compare_layer, place
    )
    widgets.show(figure, "compare", 1200)
    st.markdown("#### How far apart")
    sides = comparison.names_of(subject, other, s.layer, s.compare_layer)
    if unfit(subject.run, "symmetric") or unfit(other.run, "symmetric"):
        found = comparison.numbers(subject, other, s.layer, s.compare_layer, place)
        distances(found, ("frobenius", "relative", "cosine"))
        st.caption(widgets.plain(BASES))
        widgets.table_files(comparison.distances_table(found, sides), "distances")
        return
    slot = st.container()
    st.segmented_control(
        "Where a symmetric part is not positive definite",
        list(STAND_INS),
        key=state.bind("compare_indefinite", list(STAND_INS)),
        format_func=STAND_INS.__getitem__,
        help="Affine-invariant and log-Euclidean distances exist between positive definite "
        "matrices only.",
    )
    st.caption(widgets.plain(INDEFINITE[s.compare_indefinite]))
    found = comparison.numbers(
        subject, other, s.layer, s.compare_layer, place, s.compare_indefinite
    )
    with slot:
        distances(found)
        widgets.table_files(comparison.distances_table(found, sides), "distances")


def distances(found: Distances, names: Sequence[str] = tuple(LABELS)) -> None:
    """The distances, each with its definition."""
    columns = st.columns(4, gap="small")
    for k, name in enumerate(names):
        value, words = getattr(found, name), DEFINITIONS[name]
        if name == "kept":
            text = " and ".join(f"{part:.1%}" for part in value)
        elif isinstance(value, tuple):
            text = f"{value[0]} and {value[1]}"
        else:
            text = number(value) if value == value else "none"
        columns[k % 4].markdown(f"{LABELS[name]}  \n**{widgets.plain(text)}**", help=words)


def angles(subject: Subject, other: Subject, place: int) -> None:
    """Subspaces, every head against every head."""
    s = session()
    columns = st.columns([3, 2, 3], gap="large", vertical_alignment="bottom")
    with columns[0]:
        ranks = range(1, subject.run.config.model.d_head + 1)
        key = state.bind("compare_rank", ranks, ranks[0])
        if len(ranks) > 1:
            st.select_slider("Leading directions", ranks, key=key)
    with columns[1]:
        key = state.bind("compare_side", list(SIDES))
        st.segmented_control("Of the", list(SIDES), key=key, format_func=SIDES.__getitem__)
    with columns[2]:
        key = state.bind("compare_measure", list(MEASURES))
        st.selectbox(
            "Shown", list(MEASURES), key=key, format_func=lambda m: MEASURES[m].capitalize()
        )
    figure = comparison.angles(
        subject,
        other,
        s.compare_rank,
        s.compare_side,
        s.compare_measure,
        s.layer,
        s.compare_layer,
        place,
    )
    widgets.show(figure, "angles", 620)


def transplant(subject: Subject, other: Subject, place: int) -> None:
    """Each input with the other's metric, both ways."""
    s = session()
    both = ((subject, other, s.compare_layer), (other, subject, s.layer))
    for k, (first, donor, layer) in enumerate(both):
        st.markdown(f"#### {'AB'[k]} with the metric of {'BA'[k]}")
        with widgets.guard("The transplant"):
            result = cache.swap(first, donor, layer, place)
            figure = comparison.transplanted(first, donor, layer, place, result)
            widgets.show(figure, f"transplant-{k}", 1000)
            if result.continuations:
                texts = zip(st.columns(2), result.names, result.continuations, strict=True)
                for column, title, text in texts:
                    column.caption(f"Continued with {widgets.plain(title)}")
                    column.code(text or " ", language=None, wrap_lines=True)


page()
