"""Figure board: what was collected on the way, as one ZIP for a paper."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app import boards, warm, widgets
from app.boards import Collected
from app.state import session
from damcha.figures.bundle import Item, bundle
from damcha.figures.compose import compose


def page() -> None:
    """List the figures; write the ZIP."""
    st.markdown("#### Figure board")
    if not boards.board():
        st.caption(
            "Nothing collected yet. Under every figure of the other pages, open Export and choose "
            "“Add to the figure board”; here they become one ZIP with PDF, SVG and PNG, all "
            "numbers, captions for LaTeX, and a script that makes every figure again."
        )
        return
    board()


@st.fragment
def board() -> None:
    """The figures in order, what can be done with them, and the ZIP."""
    s = session()
    marked = [one for one in s.board if entry(one)]
    st.divider()
    columns = st.columns([2, 2, 2, 2], gap="medium", vertical_alignment="bottom")
    widgets.pick_page(columns[0], columns[1], "board")
    if columns[2].button(
        "Compose the marked",
        disabled=len(marked) < 2,
        width="stretch",
        help="One figure with panels (a), (b), …",
    ):
        made = compose([one.figure for one in marked], min(3, len(marked)), "")
        inputs = tuple(dict(pair for one in marked for pair in one.inputs).items())
        boards.add(made, inputs)
        st.rerun()
    fault = boards.keep()
    st.caption(
        fault
        or "The address of this page keeps the board, with the files that its figures were made "
        "from, on the server's disk. Who has the link can open it; what they change goes into a "
        "board of their own."
    )
    if columns[3].button("Write the ZIP", type="primary", width="stretch"):
        archive()


def entry(one: Collected) -> bool:
    """One figure: its name, caption and place. Return whether it is marked."""
    s = session()
    place = s.board.index(one)
    key = str(one.number)
    figure = one.figure
    with st.container(border=True):
        columns = st.columns([1, 9, 1, 1, 1], vertical_alignment="center")
        marked = columns[0].checkbox("Mark", key=f"mark-{key}", label_visibility="collapsed")
        title = columns[1].text_input(
            "Title", figure.title, key=f"title-{key}", label_visibility="collapsed"
        )
        if columns[2].button("↑", key=f"up-{key}", disabled=place == 0, help="Earlier"):
            s.board[place - 1 : place + 1] = [one, s.board[place - 1]]
            boards.keep()
            st.rerun()
        if columns[3].button(
            "↓", key=f"down-{key}", disabled=place == len(s.board) - 1, help="Later"
        ):
            s.board[place : place + 2] = [s.board[place + 1], one]
            boards.keep()
            st.rerun()
        if columns[4].button("✕", key=f"remove-{key}", help="Remove"):
            s.board.remove(one)
            boards.keep()
            st.rerun()
        caption = st.text_area(
            "Caption", figure.caption, key=f"caption-{key}", height=68, label_visibility="collapsed"
        )
        if (title, caption) != (figure.title, figure.caption):
            s.board[place] = replace(one, figure=replace(figure, title=title, caption=caption))
        with st.expander("Look at it"):
            widgets.picture(s.board[place].figure)
    return bool(marked)


def archive() -> None:
    """Write the ZIP with progress, and offer it."""
    s = session()
    items = [Item(one.figure, dict(one.inputs)) for one in s.board]
    bar = st.progress(0.0, "Drawing")
    content = b""
    with widgets.guard("The ZIP"):
        for step in bundle(items, s.venue, s.column, warm.threads()):  # type: ignore[arg-type]
            if isinstance(step, bytes):
                content = step
            else:
                bar.progress(step / len(items), f"{step} of {len(items)} figures")
        bar.empty()
        st.download_button(
            f"Download figures.zip, {len(content) / 1e6:.1f} MB",
            content,
            "figures.zip",
            "application/zip",
            on_click="ignore",
        )
        st.caption(
            "`python regenerate.py` in it makes every figure again and compares all numbers."
        )


page()
