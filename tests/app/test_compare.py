import numpy as np
import pytest

from damcha import gallery, open_run
from damcha.analysis.comparison import distances


@pytest.fixture
def subjects(tiny_runs):
    run = open_run(tiny_runs / "fashion-damcha")
    return [gallery.open_subject(run, 10, sample, device="cpu") for sample in run.samples]


def test_two_samples_side_by_side(opened, charts, subjects):
    at = opened("compare")
    a, b, gap = charts(at)["compare"]
    np.testing.assert_allclose(a, subjects[0].metric(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(b, subjects[1].metric(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gap, a - b, atol=1e-6)
    found = distances(subjects[0].metric(), subjects[1].metric())
    said = "".join(mark.value for mark in at.markdown).replace("\\", "")
    assert f"**{found.frobenius:.4g}**" in said
    assert not at.error


@pytest.mark.parametrize("part", ["spectra", "angles", "transplant"])
def test_parts(opened, charts, part):
    at = opened("compare", compare_part=part)
    assert set(charts(at)) & {"spectra", "angles", "transplant-0"}
    assert not at.error


def test_the_same_thing_twice(opened, heads):
    at = opened("compare", compare_kind="same")
    panel = heads(at)["compare"]["panels"][2]
    assert panel["mark"] == "sentence" and "0" in panel["text"]
    assert not at.error


def test_runs_of_other_kinds(opened):
    assert not opened("compare", compare_run="unshared", compare_layer="1").error
    at = opened("compare", compare_run="classes", compare_part="transplant")
    assert not at.exception
    assert "share no cross-head metric" in opened("compare", run="mha").info[0].value
