import numpy as np
import pytest

from damcha import gallery, open_run


def test_the_blocks_are_the_librarys(opened, charts, tiny_runs):
    at = opened("contributions")
    run = open_run(tiny_runs / "fashion-damcha")
    subject = gallery.open_subject(run, 10, run.samples[0], device="cpu")
    wanted = gallery.contributions.figure(subject).panels[0].mark.values
    np.testing.assert_allclose(charts(at)["contributions"][0], wanted, atol=1e-6)
    assert not at.error


@pytest.mark.parametrize("view", ["layers", "heads", "metric"])
def test_views(opened, charts, view):
    at = opened("contributions", contributions_view=view)
    assert "contributions" in charts(at) and not at.error


def test_integrated_gradients_tell_their_error(opened):
    at = opened("contributions", contributions_method="integrated_gradients")
    assert any("completeness error" in caption.value for caption in at.caption)
    at = opened("contributions", contributions_method="gradient")
    assert any("constant along block rows" in caption.value for caption in at.caption)


@pytest.mark.parametrize(("run", "target"), [("text", "token"), ("classes", "class"),
                                             ("fashion-damcha", "patch")])  # fmt: skip
def test_targets(opened, run, target):
    at = opened("contributions", run=run, contributions_target=target, contributions_index="2")
    assert not at.error
    assert at.selectbox(key="contributions_index").value == 2


def test_sharing_off_beside_sharing_on(opened, heads):
    at = opened("contributions", contributions_beside="unshared")
    titles = [panel["rowTitle"] for panel in heads(at)["contributions"]["panels"]]
    assert titles[0].startswith("unshared, a metric for each layer")
    assert titles[2].startswith("fashion-damcha, one metric shared")


def test_without_a_metric(opened):
    assert "share no cross-head metric" in opened("contributions", run="moa").info[0].value
