"""The dashboard: `streamlit run app/main.py`. The list of pages, and the sidebar they share."""

from __future__ import annotations

import streamlit as st

from app import cache, state, warm, widgets

st.set_page_config(
    page_title="DAMCHA", page_icon="app/icon.png", layout="wide", initial_sidebar_state="expanded"
)
page = st.navigation([st.Page("views/inspect.py", title="Inspect")], position="hidden")
warm.start()

s = state.session()
with st.sidebar:
    st.markdown("#### DAMCHA\nOne input, one cross-head metric")
    runs, broken = cache.runs()
    if not runs:
        widgets.no_runs(broken)
        st.stop()
    run = widgets.pick_run(runs, broken)
    epoch = widgets.pick_epoch(run)
    widgets.pick_layer(run)
    st.divider()
    given = widgets.pick_input(run)
    st.divider()
    device = widgets.pick_device()

for notice in s.notices:
    st.info(widgets.plain(notice), icon=":material/link:")
with widgets.guard("This input"):
    if given is not None:
        s.shown = cache.subject(run, epoch, device, given, s.invert, s.frame)
page.run()
state.write_url(s.shown)
warm.freeze()
