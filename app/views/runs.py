"""Runs: how they trained, how they differ, what they cost."""

from __future__ import annotations

import streamlit as st

from app import cache, imports, state, widgets
from app.state import session
from damcha.analysis.runs import differences
from damcha.checkpoint.run import Run
from damcha.errors import InputError
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
    add(found)
    if runs:
        show(runs)
    else:
        st.caption("Choose runs to see how they trained.")
    for folder, reason in broken:
        st.caption(f"**{widgets.plain(folder)}** cannot be opened: {widgets.plain(reason)}")


def show(runs: list[Run]) -> None:
    """Draw curves, results, differences and cards."""
    s = session()
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


def add(found: dict[str, Run]) -> None:
    """Take a checkpoint of the authors' own code, and say what became of it."""
    s = session()
    new = found.get(s.imported)
    with st.expander(
        "Add a checkpoint of the DAMCHA authors' own code",
        expanded=new is not None or s.old_metrics is not None,
    ):
        files = st.file_uploader(
            "Checkpoint (.pt), or all checkpoint_epoch_N.pt of a run",
            "pt",
            accept_multiple_files=True,
            key="import-files",
            max_upload_size=imports.MOST_MEGABYTES,
            help="Format version 2. Nothing in it is run: only tensors and settings are read. The "
            "run goes to this server's disk, where all who use it see it.",
        )
        left, middle, right = st.columns(3)
        stem = files[0].name.removesuffix(".pt") if files else ""
        name = left.text_input("Name of the run", key=state.bind("import_name"), placeholder=stem)
        tokenizer = middle.file_uploader(
            "Of a model of text: its tokenizer.json",
            "json",
            key="import-tokenizer",
            max_upload_size=40,
            help="The checkpoint does not hold it. Without it a text is numbers of symbols.",
        )
        first = right.text_input(
            "Symbol that begins a text",
            key=state.bind("import_first"),
            placeholder="As its tokenizer says",
        )
        if st.button("Import", type="primary", disabled=not files):
            s.imported, s.old_metrics = "", None
            with widgets.guard("The checkpoint"):
                if first.strip() and not first.strip().isdecimal():
                    raise InputError(f"{first!r} is no number of a symbol")
                symbol = int(first) if first.strip() else None
                with st.spinner(f"Reading {len(files)} file{'s' * (len(files) > 1)}"):
                    made = imports.take(files, name.strip() or stem, tokenizer, symbol)
                if isinstance(made, Run):
                    s.imported = made.name
                else:
                    s.old_metrics = made
                st.rerun()
        if new is not None:
            st.success(f"{widgets.plain(new.name)} is among the runs.", icon=":material/check:")
            st.code(new.card, language=None, wrap_lines=True)
            st.button("Open it", on_click=state.assign, args=("run", s.imported))
        if s.old_metrics is not None:
            old_metrics()


def old_metrics() -> None:
    """Show M of a version-1 checkpoint, whose model cannot be run."""
    s = session()
    old = s.old_metrics
    why = f"{old.why[0].upper()}{old.why[1:]}. Its M is the same for every input:"
    st.info(widgets.plain(why), icon=":material/info:")
    layers = range(len(old.metrics))
    if len(layers) > 1:
        st.segmented_control("Layer", layers, key=state.bind("old_layer", layers))
    with widgets.guard("The metric"):
        widgets.show(gallery.old_metric(old, s.old_layer), "old-metric", 700)


def alike(run: Run, other: Run) -> bool:
    """Whether losses of two runs can stand beside each other: the same task on the same data."""
    return (run.config.task, run.config.data) == (other.config.task, other.config.data)


page()
