"""Results: the paper's tables and figures as they came out here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import streamlit as st

from app import cache, widgets

SUFFIXES = ("pdf", "png", "npz", "json")


def page() -> None:
    """Choose an experiment; show its table, figures and card."""
    st.markdown("#### Results")
    with widgets.guard("The results"):
        from damcha.reproduce.read import list_results

        found, broken = list_results(*folders())
        for name, reason in broken:
            st.caption(f"**{widgets.plain(name)}** cannot be opened: {widgets.plain(reason)}")
        if not found:
            st.caption(
                "Nothing reproduced yet. `damcha reproduce table4 --small` writes the first one "
                "in a minute; a folder elsewhere is named in DAMCHA_RESULTS."
            )
            return
        chosen = st.selectbox(
            "Experiment", range(len(found)), key="result", label_visibility="collapsed",
            format_func=lambda k: f"{found[k].name}: {found[k].title}",
        )  # fmt: skip
        show(found[chosen])


def folders() -> list[Path]:
    """DAMCHA_RESULTS; or results/ beside each folder of runs, and in it."""
    if listed := os.environ.get("DAMCHA_RESULTS"):
        return [Path(part) for part in listed.split(os.pathsep) if part]
    runs = cache.run_folders()
    return list(dict.fromkeys(p / "results" for f in runs for p in (f.parent, f)))


def show(result: Any) -> None:
    """One experiment."""
    size = "small, on data at hand" if result.small else "the paper's size"
    st.caption(widgets.plain(f"{size}; {result.date}; {result.command}"))
    if result.table is not None:
        made = result.table
        # Not as Markdown: a results folder may be somebody's, and a cell could hold a link.
        columns = zip(*made.rows, strict=True)
        shown = {name: [cell(value, made.digits) for value in column]
                 for name, column in zip(made.columns, columns, strict=True)}  # fmt: skip
        st.dataframe(shown, hide_index=True)
        st.caption(widgets.plain(made.caption))
        downloads(result, "table", ("tex", "md"))
    for name in result.figures:
        with widgets.guard(name):
            st.image(result.picture(name), width=900)
            downloads(result, name, SUFFIXES)
    with st.expander("Card"):
        # As text: a card comes with somebody's results, and could point at pictures elsewhere.
        st.code(result.card or "These results have no card.", language=None, wrap_lines=True)
    downloads(result, "results", ("json",))


def downloads(result: Any, name: str, suffixes: tuple[str, ...]) -> None:
    """Offer the files of that name which are there."""
    with st.container(horizontal=True):
        for suffix in suffixes:
            file = f"{name}.{suffix}"
            if (result.path / file).exists():
                st.download_button(
                    file, result.file(file), file, key=f"get-{file}", on_click="ignore"
                )


def cell(value: Any, digits: int) -> str:
    """A cell as the printed table has it."""
    if isinstance(value, tuple):
        centre, low, high = (f"{number:.{digits}f}" for number in value)
        return f"{centre} [{low}, {high}]"
    return (
        f"{value:.{digits}f}" if isinstance(value, float) else "" if value is None else str(value)
    )


page()
