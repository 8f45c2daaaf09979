"""Atlas: the metrics of many inputs at once."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import streamlit as st
from PIL import Image

from app import cache, state, widgets
from app.state import session
from damcha.analysis.atlas import FEATURES, MAPS, STATISTICS, Atlas, nearest, project, survey
from damcha.data.evaluation import EvaluationSet
from damcha.data.pairs import PairExamples
from damcha.errors import InputError
from damcha.figures.style import number
from damcha.gallery import Snapshot, Subject, atlas, unfit

PARTS = {
    "map": "Map",
    "moments": "Mean and variance",
    "components": "Principal components",
    "neighbours": "Neighbours of this input",
    "probes": "What can be read from it",
    "relation": "Loss against a number",
}
SIZES = (500, 2000, 5000)


def page() -> None:
    """Survey held-out inputs, then show them in one of the ways."""
    subject = session().shown
    if subject is None:
        st.markdown("#### Nothing to show yet")
        st.caption("Choose a run in the sidebar.")
        return
    name = f"{subject.run.name}, epoch {subject.epoch}"
    st.markdown(f"#### The metrics of many inputs: {widgets.plain(name)}")
    if subject.inspection.metrics is None:
        widgets.no_metric(subject)
        return
    surveyed(subject)


def surveyed(subject: Subject) -> None:
    """Survey, with progress."""
    s = session()
    found = None
    with widgets.guard("The atlas"):
        st.segmented_control("Held-out inputs", SIZES, key=state.bind("atlas_n", SIZES))
        data = cache.evaluation_set(subject.run, s.atlas_n)
        snapshot = cache.snapshot(subject.run, subject.epoch, s.device)
        assert subject.inspection.metrics is not None  # asked by the page
        position = s.position if s.position < subject.inspection.metrics.shape[1] else -1
        key = ("atlas", subject.weights_digest, data.digest, s.layer, position)
        found = widgets.long(
            key, lambda: survey(snapshot.model, data, s.layer, position), f"Survey {len(data):,}"
        )
        if found is None:
            said = widgets.plain(data.name)
            st.caption(f"Runs {len(data):,} inputs of {said} through the model.")
    if found is not None:
        shown(subject, snapshot, data, found, key)


@st.fragment
def shown(
    subject: Subject, snapshot: Snapshot, data: EvaluationSet, found: Atlas, key: tuple[Any, ...]
) -> None:
    """One way to look at the survey."""
    s = session()
    if s.atlas_open:
        s.atlas_open = False
        st.switch_page("views/inspect.py")
    st.markdown(
        f"Adaptivity **{number(found.adaptivity)}**",
        help="Between-input variance of M over its mean squared norm: 0 where every input has the "
        "same metric.",
    )
    st.segmented_control(
        "Part",
        list(PARTS),
        key=state.bind("atlas_part", list(PARTS)),
        format_func=PARTS.__getitem__,
        label_visibility="collapsed",
    )
    options: dict[str, Any] = {"layer": s.layer, "position": s.position, "result": found}
    with widgets.guard("The atlas"):
        if found.is_constant and s.atlas_part != "moments":
            st.info(
                "Every input has the same metric (it does not depend on the input), so there is no "
                "map to draw and nothing to read from it.",
                icon=":material/info:",
            )
        elif s.atlas_part == "moments":
            widgets.show(atlas.moments(snapshot, data, **options), "moments", 1150)
        elif s.atlas_part == "components":
            widgets.show(atlas.principal(snapshot, data, **options), "components", 1150)
        elif s.atlas_part == "relation":
            names = [name for name in STATISTICS if name != "loss"]
            key_ = state.bind("atlas_statistic", names)
            st.selectbox("Number", names, key=key_, format_func=STATISTICS.__getitem__)
            figure = atlas.relation(snapshot, data, s.atlas_statistic, **options)
            widgets.show(figure, "relation", 760)
        elif s.atlas_part == "probes":
            read(snapshot, found, key)
        elif s.atlas_part == "neighbours":
            neighbours(subject, snapshot, data, found)
        else:
            chart(snapshot, data, found, key, options)
    state.write_url(subject)


def chart(
    snapshot: Snapshot,
    data: EvaluationSet,
    found: Atlas,
    key: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """A map of the inputs; a click opens one."""
    s = session()
    columns = st.columns(3, gap="medium")
    with columns[0]:
        choose_feature(snapshot)
    with columns[1]:
        st.selectbox(
            "Map",
            list(MAPS),
            key=state.bind("atlas_map", list(MAPS)),
            format_func=MAPS.__getitem__,
        )
    with columns[2]:
        groups = ["label"] * (found.labels is not None) + ["part"] * bool(data.parts)
        colours = [*groups, *STATISTICS]
        st.selectbox(
            "Colour",
            colours,
            key=state.bind("atlas_colour", colours),
            format_func=lambda name: STATISTICS.get(name, name),
        )
    with st.spinner("Placing the inputs", show_time=True):
        features = found.features[s.atlas_feature]
        placed = cache.embedded((*key, s.atlas_feature), s.atlas_map, features)
    figure = atlas.chart(
        snapshot, data, s.atlas_feature, s.atlas_map, s.atlas_colour, **options, placed=placed
    )
    s.atlas_order = figure.arrays["order"]
    widgets.show(figure, "atlas", 860, on_click=lambda chart: open_point(chart, data))
    st.caption("Each point is an input; click one to open it in Inspect.")


def choose_feature(snapshot: Snapshot) -> None:
    """What of the metric is compared."""
    features = [feature for feature in FEATURES if not unfit(snapshot.run, feature)]
    st.selectbox(
        "Of",
        features,
        key=state.bind("atlas_feature", features),
        format_func=FEATURES.__getitem__,
        width=300,
    )


def open_point(chart: str, data: EvaluationSet) -> None:
    """Take the input that was clicked."""
    s = session()
    point = state.clicked(chart)
    if point is not None and s.atlas_order is not None and point[0] < len(s.atlas_order):
        take(data, int(s.atlas_order[point[0]]))


def take(data: EvaluationSet, k: int) -> None:
    """Make a held-out input the current one, to be opened in Inspect.

    Only a callback may: it runs before the sidebar's widgets, which it sets, are drawn.
    """
    content, is_text = original(data, k)
    target = None
    if isinstance(data.data, PairExamples):
        content, _, target = content.partition(b"\t")
    state.open_input(f"held-out {data.places[k]}.png", content, is_text, target)
    session().atlas_open = True


def original(data: EvaluationSet, k: int) -> tuple[bytes, bool]:
    """Return a held-out input as a file, and whether it is text."""
    found = data.original(k)
    if isinstance(found, bytes):
        return found, True
    buffer = io.BytesIO()
    Image.fromarray(found[..., 0] if found.shape[2] == 1 else found).save(buffer, "PNG")
    return buffer.getvalue(), False


def read(snapshot: Snapshot, found: Atlas, key: tuple[Any, ...]) -> None:
    """What the class can be read from."""
    s = session()
    choose_feature(snapshot)
    try:
        with st.spinner("Cross-validating", show_time=True):
            rows, note = cache.probed(key, s.atlas_feature, found)
    except InputError as error:
        st.info(widgets.plain(str(error)), icon=":material/info:")
        return
    best = max((row for row in rows if "metric" in row.name), key=lambda row: row.accuracy)
    st.markdown(
        f"The class can be read from {FEATURES[s.atlas_feature].split(',')[0]} alone with "
        f"**{best.accuracy:.1%} ± {best.spread:.1%}** ({best.name.split(',')[0]})."
    )
    lines = ["| from | accuracy | ± over folds |", "| --- | ---: | ---: |"]
    lines += [f"| {row.name} | {row.accuracy:.1%} | {row.spread:.1%} |" for row in rows]
    st.markdown("\n".join(lines))
    st.caption(
        f"{note} The metric is computed from the context (the mean embedding): it holds no more "
        "about the class, though a probe may read it more easily."
    )


def neighbours(subject: Subject, snapshot: Snapshot, data: EvaluationSet, found: Atlas) -> None:
    """The held-out inputs whose metric is closest to this one's."""
    s = session()
    choose_feature(snapshot)
    metric = subject.metric(s.layer, s.position)
    own = project(found, s.atlas_feature, metric, subject.n_heads)
    order, gaps = nearest(found.features[s.atlas_feature], own, 8)
    st.caption(
        "Held-out inputs by the Euclidean distance of their metric to this input's, nearest first."
    )
    columns = st.columns(4)
    for k, (index, gap) in enumerate(zip(order, gaps, strict=True)):
        with columns[k % 4]:
            content, is_text = original(data, int(index))
            words = f"distance {number(float(gap))}"
            if found.labels is not None and found.labels[index] < len(data.class_names):
                words = f"{data.class_names[found.labels[index]]}, {words}"
            if is_text:
                st.code(content.decode("utf-8", "replace"), language=None, wrap_lines=True)
                st.caption(widgets.plain(words))
            else:
                pixels = np.asarray(data.original(int(index)))
                st.image(widgets.with_grid(pixels, 0, 160), widgets.plain(words), width=160)
            st.button("Open in Inspect", key=f"open-{k}", on_click=take, args=(data, int(index)))


page()
