import numpy as np
import pytest

from damcha.figures import paper
from damcha.figures.atlas import components_figure, map_figure, moments_figure, relation_figure
from damcha.figures.spec import Bars, Heatmap, Scatter, Sentence

RNG = np.random.default_rng(0)
PLACES = RNG.normal(size=(6, 2))
NAMES = [f"input {k}" for k in range(6)]


def marks(figure):
    return [panel.mark for panel in figure.panels]


class TestMap:
    def test_a_click_finds_its_input_whatever_the_groups(self):
        groups = ["b", "a", "b", "c", "a", "b"]
        figure = map_figure(PLACES, NAMES, "PCA", "", groups=groups)
        (mark,) = marks(figure)
        assert [one.name for one in mark.series] == ["a", "b", "c"] and mark.clickable
        drawn = np.concatenate([np.stack([one.x, one.y], 1) for one in mark.series])
        order = figure.arrays["order"]
        np.testing.assert_array_equal(drawn, PLACES[order])
        words = [word for one in mark.series for word in one.labels]
        assert words == [NAMES[k] for k in order]
        paper.render(figure, "pdf")

    def test_a_number_is_a_colour_with_its_bar(self):
        values = np.arange(6.0)
        (mark,) = marks(map_figure(PLACES, NAMES, "PCA", "", values=values, label="loss"))
        assert mark.scale.limits == (0, 5) and mark.scale.label == "loss"
        np.testing.assert_array_equal(mark.series[0].values, values)

    @pytest.mark.parametrize("values", [np.ones(6), np.full(6, np.nan)])
    def test_numbers_that_do_not_vary_have_no_bar(self, values):
        figure = map_figure(PLACES, NAMES, "PCA", "", values=values, label="loss")
        assert marks(figure)[0].scale is None
        paper.render(figure, "pdf")


class TestMoments:
    def test_mean_and_variance_each_at_its_scale(self):
        mean, variance = RNG.normal(size=(6, 6)), RNG.random((6, 6))
        figure = moments_figure(mean, variance, 2, 1234, 0.25)
        left, right = marks(figure)
        np.testing.assert_allclose(left.values, mean, rtol=1e-6)
        np.testing.assert_allclose(right.values, variance, rtol=1e-6)
        assert left.scale.limits[1] == pytest.approx(np.abs(mean).max())
        assert right.scale.limits == (0, pytest.approx(variance.max()))
        assert "1,234 held-out" in figure.caption and "0.25" in figure.caption
        assert "Each cell" not in figure.caption

    def test_no_variance_is_a_sentence(self):
        _, right = marks(moments_figure(np.eye(6), np.zeros((6, 6)), 2, 3, 0.0))
        assert right == Sentence("Variance: constant, every value is 0.")

    def test_wide_ones_are_pooled_and_it_is_said(self):
        figure = moments_figure(RNG.normal(size=(512, 512)), RNG.random((512, 512)), 8, 3, 0.1)
        assert [mark.values.shape for mark in marks(figure)] == [(256, 256)] * 2
        assert "Each cell shows the largest of 2×2" in figure.caption


class TestComponents:
    def test_shares_and_metrics_at_one_scale(self):
        shares = np.array([0.7, 0.2, 0.1])
        parts = RNG.normal(size=(2, 6, 6))
        figure = components_figure(shares, parts, 2, 50, " Noted.")
        bars, *maps = marks(figure)
        assert isinstance(bars, Bars)
        np.testing.assert_allclose(bars.values, [70, 20, 10])
        assert all(isinstance(mark, Heatmap) for mark in maps)
        assert maps[0].scale == maps[1].scale
        assert maps[0].scale.limits[1] == pytest.approx(np.abs(parts).max())
        assert figure.panels[1].title == "component 1: 70.0%"
        assert "hold 100.0% of the variance" in figure.caption and "Noted." in figure.caption
        paper.render(figure, "pdf")

    def test_the_first_shares_only(self):
        figure = components_figure(np.full(40, 1 / 40), RNG.normal(size=(1, 6, 6)), 2, 50)
        assert len(marks(figure)[0].labels) == 8
        assert "the first 8 components hold 20.0%" in figure.caption


class TestRelation:
    def test_points_and_what_the_correlation_is(self):
        x, y = RNG.normal(size=(2, 9))
        figure = relation_figure(x, y, "norm", "loss", (-0.5, -0.7, 0.25))
        (mark,) = marks(figure)
        assert isinstance(mark, Scatter)
        assert "ρ = −0.50, 95 % interval [−0.70, 0.25]" in figure.caption
        assert "9 inputs" in figure.caption

    def test_gaps_are_left_out_and_few_have_no_interval(self):
        x = np.array([1.0, np.nan, 3, 4])
        figure = relation_figure(x, np.arange(4.0), "norm", "loss", None)
        np.testing.assert_array_equal(marks(figure)[0].series[0].x, [1, 3, 4])
        assert figure.caption == "3 inputs. Too few inputs for a correlation."

    def test_what_does_not_vary_is_a_sentence(self):
        figure = relation_figure(np.ones(9), np.arange(9.0), "norm", "loss", None)
        assert marks(figure) == [Sentence("norm against loss: nothing varies.")]
