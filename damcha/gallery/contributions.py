"""Figures of what the metric contributes to an answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from damcha.analysis.contributions import (
    METHODS,
    Baseline,
    Contributions,
    Method,
    Target,
)
from damcha.analysis.contributions import contributions as compute
from damcha.errors import InputError
from damcha.figures.contributions import (
    View,
    comparison_figure,
    contributions_figure,
    error_note,
)
from damcha.figures.spec import Figure
from damcha.gallery.subject import Subject, pair_provenance, provenance

Kind = Literal["loss", "class", "token", "patch"]
Of = Annotated[Kind, "What is explained: the loss, a class, a byte, or a patch's error."]
Index = Annotated[int, "Which class, byte or patch."]
How = Annotated[Method, "Method of attribution."]
Start = Annotated[Baseline, "Metric that integrated gradients start from."]
Steps = Annotated[int, "Steps of integrated gradients."]
Position = Annotated[int | None, "One refresh of a causal metric; all are summed by default."]
Absolute = Annotated[bool, "Sum absolute values."]

ROWS_NOTE = (
    "Under RowSum ∂F/∂M_ab is the same for every b: a raw gradient is constant along block rows."
)


def explain(
    subject: Subject,
    target: Kind = "loss",
    index: int = 0,
    method: Method = "gradient_x_value",
    baseline: Baseline = "zero",
    steps: int = 32,
    position: int | None = None,
) -> Contributions:
    """Contributions for one input.

    Raises
    ------
    InputError
        If the model has no metric, or the target does not fit it.
    """
    subject.metric()  # refuses a model without one, by the run's name
    return compute(
        subject.model,
        subject.example,
        Target(target, index),
        method,
        baseline=baseline,
        mean=subject.reference,
        steps=steps,
        position=position,
    )


def figure(
    subject: Subject,
    view: Annotated[View, "What to show."] = "blocks",
    layer: Annotated[int | None, "One layer; the sum over all by default."] = None,
    absolute: Absolute = False,
    target: Of = "loss",
    index: Index = 0,
    method: How = "gradient_x_value",
    baseline: Start = "zero",
    steps: Steps = 32,
    position: Position = None,
    result: Contributions | None = None,
) -> Figure:
    """Contributions of the metric to an answer: by entry, block, head or layer."""
    options = _options(target, index, method, baseline, steps, position)
    found = explain(subject, **options) if result is None else result
    settings = {"view": view, "layer": layer, "absolute": absolute, **options}
    return contributions_figure(
        found.layers,
        subject.n_heads,
        what(subject, method, target, index),
        provenance(subject, "contributions", settings),
        view=view,
        layer=layer,
        absolute=absolute,
        notes=notes(subject, found),
    )


def comparison(
    first: Subject,
    second: Subject,
    absolute: Absolute = False,
    target: Of = "loss",
    index: Index = 0,
    method: How = "gradient_x_value",
    baseline: Start = "zero",
    steps: Steps = 32,
    position: Position = None,
    results: tuple[Contributions, Contributions] | None = None,
) -> Figure:
    """Two runs' block contributions by layer at one scale: sharing off against sharing on."""
    options = _options(target, index, method, baseline, steps, position)
    found = results or (explain(first, **options), explain(second, **options))
    rows = [
        (f"{one.run.name}, {_sharing(one)}", part.layers, one.n_heads)
        for one, part in zip((first, second), found, strict=True)
    ]
    if rows[0][0] == rows[1][0]:
        rows[1] = (rows[1][0] + " (2)", *rows[1][1:])
    settings = {"absolute": absolute, **options}
    return comparison_figure(
        rows,
        what(first, method, target, index),
        pair_provenance(first, second, "contributions-compare", settings),
        absolute=absolute,
        notes=[
            f"{name}: {error_note(p.value, p.baseline_value, p.completeness_error)}"
            for (name, _, _), p in zip(rows, found, strict=True)
        ],
    )


def what(subject: Subject, method: Method, target: Kind, index: int) -> str:
    """Name the explained number and the method."""
    labels = subject.example.labels
    if target == "class":
        names = subject.run.config.data.class_names
        of = f"log p of class {names[index] if index < len(names) else index}"
    elif target in ("token", "patch"):
        if not 0 <= index < len(labels):
            raise InputError(f"target: there is no {target} {index}; choose 0 to {len(labels) - 1}")
        of = (
            f"log p of {subject.run.config.symbol} {index} ({labels[index]})"
            if target == "token"
            else (f"the error of patch {labels[index]}")
        )
    else:
        of = "the loss"
    return f"{of}, {METHODS[method].lower()}"


def notes(subject: Subject, found: Contributions) -> list[str]:
    """What belongs beside the picture."""
    said = [error_note(found.value, found.baseline_value, found.completeness_error)]
    model = subject.run.config.model
    rows = model.attention == "damcha" and model.metric.aggregation == "rowsum"
    if found.method == "gradient" and rows:
        said.append(ROWS_NOTE)
    return said


def _sharing(subject: Subject) -> str:
    metric = subject.run.config.model.metric
    return {
        "stack": "one metric shared",
        "groups": f"a metric for every {metric.group_layers} layers",
    }.get(metric.sharing, "a metric for each layer")


def _options(
    target: Kind, index: int, method: Method, baseline: Baseline, steps: int, position: int | None
) -> dict[str, Any]:
    return {
        "target": target,
        "index": index,
        "method": method,
        "baseline": baseline,
        "steps": steps,
        "position": position,
    }
