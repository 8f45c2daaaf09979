import numpy as np
import pytest

from damcha.errors import InputError
from damcha.figures.epochs import (
    EpochRow,
    curves_over_epochs,
    epochs_figure,
    frames,
    surfaces_figure,
)
from damcha.figures.paper import save
from damcha.figures.spec import Contour, Heatmap, Lines, Sentence, Surface


def row(name="a", epochs=(0, 1, 10), d=8, seed=0, broken=None, heads=2):
    rng = np.random.default_rng(seed)
    metrics = tuple(rng.standard_normal((d, d)).astype(np.float32) for _ in epochs)
    return EpochRow(name, epochs, metrics, heads, broken or {})


def test_a_row_a_run_a_column_an_epoch_one_scale():
    rows = [row("a", (0, 10)), row("b", (0, 1, 10), seed=1, broken={12: "epoch 12 is sick"})]
    figure = epochs_figure(rows)
    assert figure.n_columns == 4 and len(figure.panels) == 8
    assert [panel.title for panel in figure.panels[:4]] == [f"epoch {k}" for k in (0, 1, 10, 12)]
    assert figure.panels[0].row_title == "a" and figure.panels[4].row_title == "b"
    assert figure.panels[1].mark.text == "No snapshot of epoch 1."
    assert figure.panels[7].mark.text == "epoch 12 is sick"
    drawn = [p.mark for p in figure.panels if isinstance(p.mark, Contour)]
    assert len(drawn) == 5 and len({mark.scale for mark in drawn}) == 1
    largest = max(np.abs(metric).max() for one in rows for metric in one.metrics)
    assert drawn[0].scale.limits == (-largest, largest)
    np.testing.assert_array_equal(drawn[1].values, rows[0].metrics[1])


def test_landscapes_of_all_epochs_have_one_scale_and_one_camera(tmp_path):
    rows = [row("a"), row("b", (0, 10), seed=1)]
    figure = epochs_figure(rows, form="surfaces", azimuth=20.0, elevation=50.0)
    drawn = [panel.mark for panel in figure.panels if isinstance(panel.mark, Surface)]
    assert len(drawn) == 5 and isinstance(figure.panels[4].mark, Sentence)
    assert {(mark.scale, mark.azimuth, mark.elevation) for mark in drawn} == {
        (drawn[0].scale, 20.0, 50.0)
    }
    np.testing.assert_array_equal(drawn[1].values, rows[0].metrics[1])
    assert "azimuth 20°, elevation 50°" in figure.caption
    save(figure, tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("field", ["full", "head", "blocks", "absolute", "from_first",
                                   "from_previous"])  # fmt: skip
def test_fields(field):
    one = row()
    figure = epochs_figure([one], field=field, form="heatmap", head=1)
    a, b, c = one.metrics
    wanted = {
        "full": c,
        "head": c[4:, :4] + c[4:, 4:],
        "blocks": np.sqrt((c.reshape(2, 4, 2, 4) ** 2).sum((1, 3))),
        "absolute": np.abs(c),
        "from_first": c - a,
        "from_previous": c - b,
    }[field]
    np.testing.assert_allclose(figure.panels[2].mark.values, wanted, rtol=1e-6)
    if field.startswith("from"):
        assert "every value is 0" in figure.panels[0].mark.text


def test_smoothing_is_said():
    plain, smooth = (epochs_figure([row()], smoothing=s) for s in (0.0, 1.5))
    assert "smoothed by 1.5 cells" in smooth.title and "standard deviation 1.5" in smooth.caption
    assert "mooth" not in plain.title + plain.caption
    assert np.abs(smooth.panels[0].mark.values).max() < np.abs(plain.panels[0].mark.values).max()


def test_large_metrics_are_pooled_and_it_is_said():
    figure = epochs_figure([row(d=256)])
    assert figure.panels[0].mark.values.shape == (86, 86)
    assert "of 3×3" in figure.caption
    assert figure.arrays["a.epoch_0"].shape == (256, 256)


def test_an_animation_has_the_epochs_that_all_runs_have():
    rows = [row("a", (0, 10)), row("b", (0, 1, 10), seed=1)]
    figures, labels = frames(rows, field="from_first")
    assert labels == ["epoch 0", "epoch 10"]
    assert all(isinstance(panel.mark, Heatmap) for one in figures for panel in one.panels)
    assert figures[0].panels[0].mark.scale == figures[1].panels[1].mark.scale


def test_landscapes_side_by_side_keep_their_camera():
    rows = [row("static"), row("damcha", seed=1)]
    figure = surfaces_figure(rows, 1, azimuth=20.0, elevation=50.0)
    assert [panel.title for panel in figure.panels] == ["static", "damcha"]
    for panel in figure.panels:
        assert isinstance(panel.mark, Surface)
        assert (panel.mark.azimuth, panel.mark.elevation) == (20, 50)
    assert isinstance(surfaces_figure(rows, 7).panels[0].mark, Sentence)


def test_sick_epochs_leave_the_others():
    one = row()
    one.metrics[1][0, 0] = np.nan
    figure = epochs_figure([one])
    assert "NaN" in figure.panels[1].mark.text
    assert isinstance(figure.panels[2].mark, Contour)
    with pytest.raises(InputError, match="head: there is no head 5; this model has 0 to 1"):
        epochs_figure([one], field="head", head=5)


def test_curves_have_gaps_and_sentences():
    y = np.array([1.0, np.nan, 3.0])
    curves = {"norm": {"a": (np.arange(3), y)}, "x": {"a": (np.arange(3), y * np.nan)},
              "one": {"a": (np.array([4]), np.array([2.0]))}}  # fmt: skip
    figure = curves_over_epochs(curves, {"norm": "Norm", "x": "X", "one": "One"})
    assert isinstance(figure.panels[0].mark, Lines)
    np.testing.assert_array_equal(figure.panels[0].mark.series[0].y, y)
    assert figure.panels[1].mark.text == "X: there are no finite numbers."
    assert figure.panels[2].mark.text == "One: one epoch only, a 2."
