"""The dashboard's script: the list of pages, and the sidebar that they share."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app import cache, state, warm, widgets

HERE = Path(__file__).resolve().parent

st.set_page_config(
    page_title="DAMCHA",
    page_icon=str(HERE / "icon.png"),
    layout="wide",
    initial_sidebar_state="expanded",
)
widgets.style()
page = st.navigation(
    [
        st.Page("views/inspect.py", title="Inspect", default=True),
        st.Page("views/epochs.py", title="Epochs"),
        st.Page("views/contributions.py", title="Contributions"),
        st.Page("views/ablate.py", title="Ablate"),
        st.Page("views/compare.py", title="Compare"),
        st.Page("views/atlas.py", title="Atlas"),
        st.Page("views/runs.py", title="Runs"),
        st.Page("views/efficiency.py", title="Efficiency"),
        st.Page("views/results.py", title="Results"),
        st.Page("views/board.py", title="Figure board"),
    ],
    position="top",
)

s = state.session()
with st.sidebar:
    st.markdown("#### DAMCHA")
    st.caption("The cross-head metric that a transformer computes from one input")
    runs, broken = cache.runs()
    if not runs:
        widgets.no_runs(broken)
        st.stop()
    run = widgets.pick_run(runs, broken)
    epoch = widgets.pick_epoch(run)
    widgets.pick_layer(run)
    given = widgets.pick_input(run)
    device = widgets.pick_device()

notices = st.container()
with widgets.guard("This input"):
    if given is not None:
        s.shown, s.given = cache.subject(run, epoch, device, given, s.invert, s.frame), given
if s.shown is None:
    s.shown, s.given = widgets.anything((run, *runs.values()), device)
page.run()
if s.notices:  # after the page: its widgets, too, check what the link asked for
    notices.info(widgets.plain(" ".join(s.notices)), icon=":material/link:")
state.write_url(s.shown)
warm.finish()
