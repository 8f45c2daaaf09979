import numpy as np

from damcha import gallery, open_run


def test_small_multiples_are_the_librarys(opened, charts, tiny_runs):
    at = opened("epochs", epochs_form="heatmap", epochs_runs="fashion-damcha")
    run = open_run(tiny_runs / "fashion-damcha")
    example = run.prepare(run.samples[0])
    history = gallery.epochs.open_history(run, example, device="cpu")
    shown = charts(at)["epochs"]
    assert len(shown) == 3
    for matrix, subject in zip(shown, history.subjects, strict=True):
        np.testing.assert_allclose(matrix, subject.metric(), rtol=1e-5, atol=1e-7)
    assert not at.error


def test_every_form(opened, charts):
    for form, key in (("contour", "epochs"), ("animation", "epochs"), ("surface", "surface"),
                      ("curves", "epoch-curves")):  # fmt: skip
        at = opened("epochs", epochs_form=form, epochs_runs="fashion-damcha")
        assert key in charts(at), form
        assert not at.error


def test_more_landscapes_than_a_browser_can_draw_live_are_a_picture(opened, charts):
    at = opened("epochs", epochs_form="surfaces", epochs_runs="fashion-damcha")
    assert "epochs" in charts(at) and not at.get("image")
    at = opened("epochs", epochs_form="surfaces", epochs_runs="fashion-damcha,mha")
    assert "epochs" not in charts(at) and len(at.get("image")) == 1
    assert any("One scale for all panels" in caption.value for caption in at.caption)
    assert not at.error


def test_runs_without_a_metric_and_with_one_epoch(opened):
    assert "share no cross-head metric" in opened("epochs", run="moa").info[0].value
    at = opened("epochs", run="unshared", epochs_runs="unshared")
    assert any("one epoch only" in caption.value for caption in at.caption)


def test_a_sick_epoch_is_named(opened):
    at = opened("epochs", epochs_runs="sick")
    assert any("non-finite weights" in error.value.replace("\\", "") for error in at.error)
