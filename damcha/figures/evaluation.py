"""Results of runs on held-out examples: a table, and the losses as distributions."""

from __future__ import annotations

from collections.abc import Mapping

from damcha.analysis.evaluation import Report
from damcha.analysis.summary import TOP
from damcha.errors import InputError
from damcha.figures.spec import UNKNOWN, Distributions, Figure, Panel, Provenance
from damcha.figures.table import Cell, Table
from damcha.figures.words import origin

TITLES = {
    "mse": "MSE",
    "nll": "NLL [nats]",
    "bits_per_byte": "Bits a byte",
    "perplexity_per_byte": "Perplexity a byte",
    "perplexity_per_symbol": "Perplexity a symbol",
    "top1": "Top-1 accuracy",
    "top5": "Top-5 accuracy",
}


def evaluation_table(report: Report, source: str) -> Table:
    """The measures of a run, a row each: mean with its interval, quartiles, Top-50.

    FID stands among the means, FID@Top-50 under Top-50; the caption names the features.
    """
    rows: list[tuple[Cell, ...]] = [
        (TITLES[one.name], (one.mean, *one.interval), one.q25, one.q75, one.top50)
        for one in report.measures
    ]
    n = len(report.loss)
    words = [
        f"Results on {n:,} held-out examples ({source}). Mean: with 95 % bootstrap interval.",
        f"Top-{TOP}: mean of the {TOP} of lowest loss.",
    ]
    if n < TOP:
        words.append(f"Here that is all {n}.")
    for one in report.fid:
        rows.append((f"FID, {one.outputs}", one.fid, None, None, one.fid_top))
    if report.fid:
        first = report.fid[0]
        accuracy = first.network_accuracy
        right = "" if accuracy is None else f", {accuracy:.1%} right on held-out pictures"
        words.append(f"FID: features of {first.network}{right}.")
        words += [f"{note}." for note in dict.fromkeys(n for one in report.fid for n in one.notes)]
    for score in report.text:
        rows.append((score.name, score.corpus, None, None, None))
        words.append(f"{score.name}: {score.signature}.")
    if report.bart is not None:
        rows.append(("BARTScore", float(report.bart.f.mean()), None, None, None))
    if report.written:
        ended = sum(one.ended for one in report.written)
        count = len(report.written)
        words.append(f"{count:,} sources, of whose targets {ended:,} were written to their end.")
    columns = ("Measure", "Mean [95 %]", "q25", "q75", f"Top-{TOP}")
    return Table(columns, tuple(rows), " ".join(words), "tab:evaluation")


def distributions_figure(
    reports: Mapping[str, Report], unit: str, provenance: Provenance = UNKNOWN
) -> Figure:
    """Draw the losses of runs on the same held-out examples (paper, Figures 3, 4, 6 and 7).

    Raises
    ------
    InputError
        If the reports are of different data or measures.
    """
    kinds = {(next(iter(r.values)), r.provenance.get("data_digest")) for r in reports.values()}
    if len(kinds) != 1:
        raise InputError(
            f"{', '.join(reports)}: these results are of different examples or measures, so they "
            "cannot stand in one figure"
        )
    (measure, _), n = kinds.pop(), len(next(iter(reports.values())).loss)
    boxes = Distributions(tuple(reports), tuple(report.loss for report in reports.values()))
    title = f"{TITLES[measure]} of {n:,} held-out examples"
    return Figure(
        name="distributions",
        panels=(Panel(boxes, "", unit),),
        title=title,
        caption=f"{title}{origin(provenance)}. {unit[:1].upper()}{unit[1:]}. Boxes: quartiles and "
        "the middle 90 %, diamond or dashed line: mean.",
        provenance=provenance,
        arrays={f"loss.{name}": report.loss for name, report in reports.items()},
    )
