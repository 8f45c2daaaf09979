from pathlib import Path

import numpy as np
import pytest

from damcha import gallery, open_run
from damcha.analysis.atlas import components, nearest, project, survey
from damcha.analysis.progress import finished

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints"


def plain(text):
    return text.replace("\\", "")


@pytest.fixture
def shipped(opened, monkeypatch):
    """``shipped(part, **query)``: a part of the page, surveyed, on shipped data."""

    def run(part="map", **query):
        if part != "map":
            query["atlas_part"] = part
        at = opened("atlas", **query)
        for button in at.button:  # none where a test before this one asked for the same survey
            if button.label.startswith("Survey"):
                button.click().run()
        assert not at.exception, at.exception
        return at

    monkeypatch.setenv("DAMCHA_RUNS", str(SHIPPED))
    return run


@pytest.fixture(scope="module")
def found():
    """The survey of what the page shows first."""
    run = open_run(SHIPPED / "fashion-damcha")
    return finished(survey(run.load(49, "cpu"), run.evaluation_set(n=500)))


def test_without_data_it_says_so(opened):
    assert "has no held-out data" in plain(opened("atlas").error[0].value)
    assert "share no cross-head metric" in opened("atlas", run="moa").info[0].value


def test_weights_that_are_not_finite_are_one_sentence(opened):
    at = opened("atlas", run="sick")
    said = [element.value for element in (*at.error, *at.info, *at.warning)]
    assert any("NaN" in plain(text) or "finite" in plain(text) for text in said)


def test_the_map_and_adaptivity(shipped, charts, found):
    at = shipped(run="fashion-damcha")
    assert "atlas" in charts(at) and not at.error
    assert any(f"Adaptivity **{found.adaptivity:.4g}**" in mark.value for mark in at.markdown)


def test_a_kept_survey_needs_no_second_click(shipped, charts):
    at = shipped(run="fashion-damcha")
    at.selectbox(key="atlas_map").set_value("mds").run()
    at.selectbox(key="atlas_colour").set_value("loss").run()
    assert not at.exception and "atlas" in charts(at)
    assert not [button for button in at.button if button.label.startswith("Survey")]


def test_moments(shipped, charts, found):
    mean, variance = charts(shipped("moments", run="fashion-damcha"))["moments"]
    np.testing.assert_allclose(mean, found.mean, atol=1e-5)
    np.testing.assert_allclose(variance, found.variance, rtol=1e-3, atol=1e-9)


def test_components(shipped, charts, found):
    _, *drawn = charts(shipped("components", run="fashion-damcha"))["components"]
    for shown, expected in zip(drawn, components(found).metrics, strict=True):
        np.testing.assert_allclose(shown, expected, atol=1e-4)


def test_probes(shipped):
    at = shipped("probes", run="fashion-damcha")
    table = next(mark.value for mark in at.markdown if mark.value.startswith("| from"))
    assert "| Chance |" in table and "| k-NN, context |" in table
    assert any("alone with **" in mark.value for mark in at.markdown)


def test_neighbours_are_the_nearest_and_open_in_inspect(shipped, found):
    at = shipped("neighbours", run="fashion-damcha")
    run = open_run(SHIPPED / "fashion-damcha")
    sample = next(path for path in run.samples if path.name == at.session_state["damcha"].sample)
    subject = gallery.open_subject(run, 49, sample, device="cpu")
    own = project(found, "head_metrics", subject.metric(0, -1), 8)
    order, _ = nearest(found.features["head_metrics"], own)
    data = run.evaluation_set(n=500)
    opened = [button for button in at.button if button.label == "Open in Inspect"]
    assert len(opened) == 8
    opened[0].click().run()
    assert not at.exception, at.exception
    assert f"held-out {data.places[order[0]]}.png" in plain(at.markdown[0].value)


def test_loss_against_a_number(shipped, charts):
    at = shipped("relation", run="fashion-damcha")
    assert "relation" in charts(at)
    assert any("95 % interval" in plain(one.value) for one in at.caption)


def test_text_is_coloured_by_its_part(shipped, charts):
    at = shipped(run="text-damcha")
    assert "atlas" in charts(at) and "part" in at.selectbox(key="atlas_colour").options
    at = shipped("probes", run="text-damcha")
    assert any("text has no classes" in plain(info.value) for info in at.info)


@pytest.mark.parametrize("part", ["map", "components", "probes", "neighbours", "relation"])
def test_a_static_run_gives_a_sentence(shipped, charts, part):
    at = shipped(part, run="fashion-static")
    assert any("Every input has the same metric" in info.value for info in at.info)
    assert not charts(at)


def test_the_moments_of_a_static_run(shipped, charts):
    drawn = charts(shipped("moments", run="fashion-static"))["moments"]
    assert drawn[0].shape == (64, 64)


def test_pairs_are_surveyed_as_pairs_and_open_as_source_and_target(shipped):
    at = shipped(run="write-damcha", epoch="49")
    assert not at.error
    run = open_run(SHIPPED / "write-damcha")
    data = run.evaluation_set(n=500)
    survey_ = finished(survey(run.load(49, "cpu"), data))
    assert f"**{survey_.adaptivity:.3g}" in next(
        one.value for one in at.markdown if "Adaptivity" in one.value
    )
    at = shipped("neighbours", run="write-damcha", epoch="49")
    next(button for button in at.button if button.label == "Open in Inspect").click().run()
    assert not at.exception and not at.error
    pair = f"{at.session_state['text']}\t{at.session_state['target']}".encode()
    assert pair in [data.original(k) for k in range(len(data))]
