"""Runs: how they trained, how they differ, what they cost."""

from __future__ import annotations

import streamlit as st

from app import cache, state, widgets
from app.state import session
from damcha.analysis.runs import differences
from damcha.checkpoint.run import Run
from damcha.gallery import runs as gallery


def page() -> None:
    """Choose runs; show curves, results, differences and cards."""
    s = session()
    st.markdown("#### Runs")
    found, broken = cache.runs()
    current = found.get(s.run)
    usual = [name for name, run in found.items() if current and alike(run, current)]
    chosen = st.multiselect(
        "Runs",
        list(found),
        [name for name in s.runs_chosen or usual if name in found],
        key="runs-chosen",
        label_visibility="collapsed",
        placeholder="Choose runs",
    )
    s.runs_chosen = tuple(chosen)
    runs = [found[name] for name in chosen]
    if not runs:
        st.caption("Choose runs to see how they trained.")
        return
    with widgets.guard("The curves"):
        if len(runs) > 1:
            st.checkbox("Logarithmic losses", key=state.bind("runs_log"))
        widgets.show(gallery.curves(runs, s.runs_log), "curves", 1100)
    with widgets.guard("The results"):
        slot = st.empty()
        with slot.container():  # the losses are known at once; the counting takes its time
            widgets.table(gallery.results_table(runs), "losses")
        with st.spinner("Counting parameters and multiply-adds", show_time=False):
            costs = {run.name: cache.cost(run) for run in runs}
        with slot.container():
            widgets.table(gallery.results_table(runs, costs), "runs")
    if len(runs) > 1:
        st.markdown("**Settings in which they differ**")
        found_gaps = differences(runs)
        if not found_gaps:
            st.caption("None.")
        lines = ["| setting | " + " | ".join(widgets.plain(run.name) for run in runs) + " |"]
        lines.append("| --- |" + " --- |" * len(runs))
        for name, values in found_gaps.items():
            cells = ["–" if value is None else widgets.plain(str(value)) for value in values]
            lines.append(f"| {widgets.plain(name)} | " + " | ".join(cells) + " |")
        if found_gaps:
            st.markdown("\n".join(lines))
    for run in runs:
        with st.expander(f"Card of {widgets.plain(run.name)}"):
            for note in run.notes:
                st.caption(widgets.plain(note))
            # As text: a card comes with somebody's run, and could point at pictures elsewhere.
            st.code(run.card or "This run has no card.", language=None, wrap_lines=True)
    for folder, reason in broken:
        st.caption(f"**{widgets.plain(folder)}** cannot be opened: {widgets.plain(reason)}")


def alike(run: Run, other: Run) -> bool:
    """Whether losses of two runs can stand beside each other: the same task on the same data."""
    return (run.config.task, run.config.data) == (other.config.task, other.config.data)


page()
