"""Ablate: does the metric matter, and which part of it?"""

from __future__ import annotations

import streamlit as st

from app import cache, state, widgets
from app.state import session
from damcha.analysis.ablation import INTERVENTIONS, evaluate, over_snapshots
from damcha.gallery import Subject, ablation

PARTS = {
    "answers": "On this input",
    "set": "On held-out inputs",
    "epochs": "Over epochs and runs",
    "blocks": "Block by block",
    "rank": "Rank",
}
CAVEAT = (
    "Keeping one block of a row, or all but one, changes the norm of the metric, and part of the "
    "effect is only that: compare with the norm-matched row, and with the controls."
)


def page() -> None:
    """Choose interventions; show what they do."""
    subject = session().shown
    if subject is None:
        st.markdown("#### No input yet")
        st.caption("Choose a run and an input in the sidebar.")
        return
    name = f"{subject.run.name}, epoch {subject.epoch}, {subject.example.name}"
    st.markdown(f"#### What the answer rests on: {widgets.plain(name)}")
    if subject.inspection.metrics is None:
        widgets.no_metric(subject)
        return
    chosen(subject)


@st.fragment
def chosen(subject: Subject) -> None:
    """The controls and what they choose."""
    s = session()
    st.segmented_control(
        "Part",
        list(PARTS),
        key=state.bind("ablate_part", list(PARTS)),
        format_func=PARTS.__getitem__,
        label_visibility="collapsed",
    )
    with widgets.guard("The ablation"):
        if s.ablate_part == "blocks":
            widgets.show(cache.subject_figure("knock-out", subject), "knock-out", 700)
        elif s.ablate_part == "rank":
            widgets.show(cache.subject_figure("rank", subject), "rank", 760)
        else:
            names = interventions(subject)
            st.caption(f":material/info: {CAVEAT}")
            parts = {"answers": answers, "set": held_out, "epochs": over_epochs}
            parts[s.ablate_part](subject, names)
    state.write_url(subject)


def interventions(subject: Subject) -> tuple[str, ...]:
    """Draw the picker of interventions; "full" is always the first."""
    s = session()
    there = [name for name in INTERVENTIONS if name != "mean" or subject.reference is not None]
    usual = [name for name in ablation.USUAL if name in there]
    picked = st.multiselect(
        "Interventions",
        there[1:],
        [name for name in s.ablate_names or usual if name in there[1:]],
        key="ablate-names",
        format_func=lambda name: INTERVENTIONS[name][0],
        help="  \n".join(f"**{title}**: {words}" for title, words in INTERVENTIONS.values()),
    )
    s.ablate_names = ("full", *picked)
    return s.ablate_names


def answers(subject: Subject, names: tuple[str, ...]) -> None:
    """Output beside output."""
    s = session()
    by_hand(subject)
    result = cache.ablation(subject, names, s.ablate_edits)
    figure = ablation.answers(subject, ",".join(names), result)
    widgets.show(figure, "ablation", 1200)
    if result.continuations:
        st.caption(widgets.continued(subject.run))
        for title, text in zip(result.names, result.continuations, strict=True):
            left, right = st.columns([1, 3])
            left.caption(widgets.plain(title))
            right.code(text or " ", language=None, wrap_lines=True)


def by_hand(subject: Subject) -> None:
    """Edits by hand, added to a list."""
    s = session()
    with st.expander("Edit by hand: scale a block, or silence a head", key="by-hand"):
        columns = st.columns([2, 2, 2, 1, 1], gap="small", vertical_alignment="bottom")
        heads = range(subject.n_heads)
        with columns[0]:
            st.selectbox("Query head", heads, key=state.bind("ablate_head", heads))
        with columns[1]:
            keys = (-1, *heads)
            st.selectbox(
                "Key head",
                keys,
                key=state.bind("ablate_key_head", keys),
                format_func=lambda b: "all of the row" if b < 0 else str(b),
            )
        with columns[2]:
            st.number_input("Times", -10.0, 10.0, step=0.5, key=state.bind("ablate_factor"))
        if columns[3].button("Add"):
            edit = (s.ablate_head, s.ablate_key_head, float(s.ablate_factor))
            s.ablate_edits = (*s.ablate_edits, edit)[-32:]
        if columns[4].button("Clear"):
            s.ablate_edits = ()
        for a, b, factor in s.ablate_edits:
            what = f"head {a}, whole row" if b < 0 else f"block ({a}, {b})"
            st.caption(f"{what} × {factor:g}")


def held_out(subject: Subject, names: tuple[str, ...]) -> None:
    """The same on an evaluation set."""
    s = session()
    sizes = (128, 512, 2048)
    st.segmented_control("Held-out inputs", sizes, key=state.bind("ablate_n", sizes, 512))
    data = cache.evaluation_set(subject.run, s.ablate_n)
    snapshot = cache.snapshot(subject.run, subject.epoch, s.device)
    key = ("ablation", subject.weights_digest, data.digest, names)
    edits = ablation.edits(snapshot, names)
    found = widgets.long(key, lambda: evaluate(snapshot.model, data, edits), "Evaluate")
    if found is None:
        st.caption(
            f"Runs {len(data):,} inputs of {widgets.plain(data.name)} through the model under "
            f"{len(names)} metrics; a few seconds."
        )
        return
    widgets.table(ablation.table(snapshot, data, found), "ablation-table")
    if len(names) > 1:
        figure = ablation.evaluation(snapshot, data, ",".join(names), found)
        widgets.show(figure, "ablation-set", 1000)


def over_epochs(subject: Subject, names: tuple[str, ...]) -> None:
    """The same in every snapshot of runs."""
    s = session()
    there = [run.name for run in cache.companions(subject.run)]
    chosen = st.multiselect(
        "Runs, a panel each", there, [subject.run.name], key="ablate-runs", max_selections=12
    )
    runs = [run for run in cache.companions(subject.run) if run.name in chosen]
    if not runs:
        st.caption("Choose a run.")
        return
    data = cache.evaluation_set(subject.run, 128)
    snapshots = {
        (run.name, epoch): cache.snapshot(run, epoch, s.device)
        for run in runs
        for epoch in run.epochs
    }
    digests = tuple(snapshot.weights_digest for snapshot in snapshots.values())
    found = widgets.long(
        ("ablation-epochs", digests, data.digest, names),
        lambda: over_snapshots(
            {name: snapshot.model for name, snapshot in snapshots.items()},
            data,
            lambda name: ablation.edits(snapshots[name], names),
        ),
        "Evaluate all snapshots",
    )
    if found is None:
        said = widgets.plain(data.name)
        st.caption(f"Runs {len(data):,} inputs of {said} through {len(snapshots)} snapshots.")
        return
    every = list(snapshots.values())
    if len(every) > len(runs):
        figure = ablation.over_epochs(every, data, names, found)
        widgets.show(figure, "ablation-epochs", 1100)
    widgets.table(ablation.runs_table(every, data, found), "ablation-runs")


page()
