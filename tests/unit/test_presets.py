import pytest
import torch

from damcha.model import build_model
from damcha.presets import PRESETS, SHIPPED

RUNS = {name: PRESETS[base].override(settings) for name, (base, settings) in SHIPPED.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_bears_its_name_and_builds(name):
    config = PRESETS[name]
    assert config.name == name
    with torch.device("meta"):
        assert build_model(config).config == config


def test_the_shipped_runs_are_those_of_the_issue():
    forms = (
        "damcha", "static", "unshared", "mha", "bilinear", "tha", "dcmha", "colmha", "mma", "moa",
        "budgetformer", "iha", "mhar", "attnres",
    )  # fmt: skip
    assert set(RUNS) == {
        *(f"fashion-{form}" for form in forms), *(f"text-{form}" for form in forms),
        "objects-damcha", "objects-static", "fashion-classifier",
        "translate-damcha", "translate-mha", "write-damcha", "write-mha",
    }  # fmt: skip


@pytest.mark.parametrize("family", ["fashion", "text", "objects", "translate", "write"])
def test_runs_of_a_family_differ_in_the_attention_alone(family):
    runs = [run for name, run in RUNS.items() if SHIPPED[name][0] == family]
    first = runs[0]
    for run in runs:
        train = run.train.model_copy(update={"snapshots": first.train.snapshots})
        assert (train, run.data, run.task) == (first.train, first.data, first.task)
        same = {"attention": "damcha", "metric": first.model.metric, "residual": "standard"}
        assert run.model.model_copy(update=same) == first.model
    for epoch in (0, 12, 49) if family in ("translate", "write") else (0, 1, 12, 24, 36, 49):
        assert epoch in first.train.snapshots
    assert first.train.epochs == 50


def test_the_variants_are_what_their_names_say():
    for family in ("fashion", "text"):
        metrics = {form: RUNS[f"{family}-{form}"].model.metric for form in ("damcha", "static")}
        assert metrics["damcha"].generator == "mlp" and metrics["damcha"].sharing == "stack"
        assert metrics["static"].generator == "static"
        assert RUNS[f"{family}-unshared"].model.metric.sharing == "none"
        assert RUNS[f"{family}-mha"].model.attention == "mha"
        assert RUNS[f"{family}-bilinear"].model.metric.aggregation == "bilinear"
    assert RUNS["fashion-classifier"].task == "image_classification"
