"""Ablate."""

import streamlit as st

st.caption("This page is being built.")
