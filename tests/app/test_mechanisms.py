"""Every page on runs whose attention is not DAMCHA: the metric that it implies, or a sentence."""

import shutil

import numpy as np
import pytest

from damcha import gallery, open_run
from damcha.errors import InputError

PAGES = {
    "inspect": {"metric", "blocks"},
    "epochs": {"epochs"},
    "contributions": {"contributions"},
    "ablate": {"ablation"},
    "compare": {"compare"},
    "runs": set(),
}


@pytest.mark.parametrize("run", ["mha", "dcmha", "iha", "pairs"])
@pytest.mark.parametrize("page", PAGES)
def test_pages_work_for_any_mechanism(opened, charts, page, run):
    at = opened(page, run=run, epochs_runs=run)
    assert not at.error, [error.value for error in at.error]
    drawn = charts(at)
    for key in PAGES[page]:
        assert any(name.startswith(key) for name in drawn), (key, sorted(drawn))


def test_inspect_shows_the_implied_metric_and_says_what_it_is(opened, charts, tiny_runs):
    at = opened(run="mha")
    shown = charts(at)["metric"][0]
    run = open_run(tiny_runs / "mha")
    subject = gallery.open_subject(run, 10, run.samples[0], device="cpu")
    np.testing.assert_allclose(shown, subject.metric(0), rtol=1e-5, atol=1e-7)
    half = shown.shape[0] // 2
    assert (shown[:half, half:] == 0).all() and (shown[half:, half:] != 0).any()
    said = " ".join(caption.value for caption in at.caption)
    assert "MHA has no f_θ; this is the metric that it implies" in said.replace("\\", "")


@pytest.mark.parametrize(("run", "missing"), [("mha", ""), ("iha", "R")])
def test_views_that_say_nothing_are_not_offered(opened, run, missing, tiny_runs):
    at = opened(run=run)
    (views,) = (group for group in at.get("button_group") if group.key == "view")
    offered = [word for word in ("M", "R", "Diag.", "Off-diag.") if word not in missing]
    assert views.options == offered
    for view in ("symmetric", "antisymmetric"):
        with pytest.raises(InputError, match="eigenvalues, symmetry and signature do not"):
            run_ = open_run(tiny_runs / run)
            gallery.KINDS["metric"].draw(
                gallery.open_subject(run_, 10, run_.samples[0], device="cpu"), view
            )


@pytest.fixture
def with_unknown(tiny_runs, tmp_path, monkeypatch):
    """The tiny runs and one whose attention is from a program that this one does not know."""
    for name in ("mha", "fashion-damcha"):
        shutil.copytree(tiny_runs / name, tmp_path / name)
    shutil.copytree(tiny_runs / "mha", tmp_path / "unknown")
    config = tmp_path / "unknown" / "config.json"
    config.write_text(config.read_text().replace('"attention": "mha"', '"attention": "nope"'))
    return tmp_path


@pytest.mark.parametrize("page", [*PAGES, "atlas", "efficiency", "board"])
@pytest.mark.parametrize("run", ["mha", "unknown"])
def test_an_unknown_mechanism_is_a_sentence_and_spoils_no_other_run(
    opened, with_unknown, monkeypatch, page, run
):
    monkeypatch.setenv("DAMCHA_RUNS", str(with_unknown))
    at = opened(page, run=run)
    errors = [error.value for error in at.error]
    assert not any("fault of this program" in error for error in errors)
    if run == "mha" and page != "atlas":  # which asks for data
        assert not errors
    elif page == "inspect":
        assert any("nope" in error for error in errors), errors
