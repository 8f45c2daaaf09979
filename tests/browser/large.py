"""A page with wide synthetic metrics, through the same figures: what speed.py opens."""

import numpy as np
import streamlit as st

from app import cache, widgets
from damcha.figures.metric import metric_figure

widgets.style()


@st.cache_resource(max_entries=2)  # noqa: TID251  # this script is not the dashboard
def metric(d):
    return np.random.default_rng(d).standard_normal((d, d)).astype(np.float32)


@st.fragment
def page():
    d = st.segmented_control("Width", [64, 1024, 2048], default=64)
    block = st.segmented_control("Part", ["whole", "block"], default="whole")
    chosen = (3, 5) if block == "block" else None
    widgets.show(metric_figure(metric(d), 8, block=chosen), "metric", 600)


assert cache  # the dashboard's own caches are in the path that is measured
for width in (64, 1024, 2048):
    metric(width)
page()
