import numpy as np
import pytest

from damcha.figures import paper, sidecar
from damcha.figures.comparison import angles_figure, side_by_side_figure, spectra_figure
from damcha.figures.spec import Heatmap, ImageGrid, Lines, Scatter, Sentence, Tokens
from damcha.figures.transplant import nats_figure, pictures_figure, probabilities_figure

H, E = 2, 3
D = H * E
NAMES = ("boot", "bag")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def marks(figure):
    return [panel.mark for panel in figure.panels]


class TestSideBySide:
    @pytest.mark.parametrize(
        ("view", "shape"), [("full", (D, D)), ("head_metrics", (D, E)), ("blocks", (H, H))]
    )
    def test_two_at_one_scale_and_their_difference(self, view, shape):
        a, b = random(D, D), 3 * random(D, D, seed=1)
        figure = side_by_side_figure(a, b, H, NAMES, view=view)
        left, right, gap = marks(figure)
        assert left.values.shape == right.values.shape == gap.values.shape == shape
        assert left.scale == right.scale != gap.scale
        largest = max(np.abs(left.values).max(), np.abs(right.values).max())
        assert left.scale.limits[1] == pytest.approx(largest)
        np.testing.assert_allclose(gap.values, left.values - right.values, atol=1e-6)
        assert gap.scale.limits == pytest.approx(np.array([-1, 1]) * np.abs(gap.values).max())
        paper.render(figure, "pdf")

    def test_the_same_twice(self):
        a = random(D, D)
        left, right, gap = marks(side_by_side_figure(a, a, H, NAMES))
        assert isinstance(left, Heatmap) and isinstance(right, Heatmap)
        assert gap == Sentence("A − B: constant, every value is 0.")

    def test_zero_metrics(self):
        zero = np.zeros((D, D), np.float32)
        figure = side_by_side_figure(zero, zero, H, NAMES)
        assert all(isinstance(mark, Sentence) for mark in marks(figure))

    def test_large_ones_are_pooled_and_it_is_said(self):
        a, b = random(256, 256), random(256, 256, seed=1)
        figure = side_by_side_figure(a, b, 4, NAMES)
        assert marks(figure)[0].values.shape == (128, 128)
        assert "of 2×2, the value that is largest in absolute terms" in figure.caption
        np.testing.assert_array_equal(figure.arrays["difference"], a - b)


class TestSpectra:
    def draw(self, a, b):
        def both(m):
            return np.linalg.svd(m, compute_uv=False), np.linalg.eigvals(m).astype(complex)

        return spectra_figure({"A": both(a), "B": both(b)})

    def test_values(self):
        a, b = random(D, D), random(D, D, seed=1)
        figure = self.draw(a, b)
        lines, plane = marks(figure)
        assert isinstance(lines, Lines) and isinstance(plane, Scatter)
        np.testing.assert_allclose(lines.series[1].y, np.linalg.svd(b, compute_uv=False))
        found = np.sort_complex(plane.series[0].x + 1j * plane.series[0].y)
        np.testing.assert_allclose(found, np.sort_complex(np.linalg.eigvals(a)), rtol=1e-6)
        assert set(np.load(_npz(figure)).files) >= {"singular_values_a", "eigenvalues_b"}

    def test_other_widths_are_measured_by_their_own(self):
        figure = self.draw(5 * np.eye(2), np.diag([8.0, 4, 2, 1]))
        lines, plane = marks(figure)
        np.testing.assert_allclose(lines.series[0].y, [1, 1])
        np.testing.assert_allclose(lines.series[1].y, [1, 0.5, 0.25, 0.125])
        np.testing.assert_allclose(lines.series[0].x, [0.5, 1])
        np.testing.assert_allclose(np.sort(plane.series[1].x)[-1], 1)
        assert "The widths differ" in figure.caption

    def test_a_log_axis_only_over_more_than_a_decade_and_without_zeros(self):
        assert not marks(self.draw(np.diag([3.0, 1]), np.eye(2)))[0].log_y
        assert marks(self.draw(np.diag([30.0, 1]), np.eye(2)))[0].log_y
        assert not marks(self.draw(np.diag([30.0, 0]), np.eye(2)))[0].log_y
        assert isinstance(marks(self.draw(np.zeros((2, 2)), np.zeros((2, 2))))[0], Sentence)


def _npz(figure):
    import io

    return io.BytesIO(sidecar.to_npz(figure))


class TestAngles:
    def draw(self, angles, d_head=4, measure="overlap"):
        values = np.square(np.cos(angles)).mean(-1) if measure == "overlap" else angles[..., 0]
        return angles_figure(angles, values, measure, "query", d_head, NAMES)

    def test_every_head_against_every_head(self):
        angles = np.abs(random(H, H, 2)).astype(np.float64)
        figure = self.draw(angles)
        mark = marks(figure)[0]
        np.testing.assert_allclose(mark.values, np.square(np.cos(angles)).mean(-1), rtol=1e-6)
        assert mark.scale.limits == (0, 1)
        assert "0.5 on average for unrelated ones" in figure.caption
        assert self.draw(angles, measure="smallest").panels[0].mark.scale.limits == (0, 90)

    def test_sentences(self):
        whole = self.draw(np.zeros((H, H, 4)))
        assert "span its whole space" in marks(whole)[0].text
        nothing = self.draw(np.full((H, H, 2), np.nan))
        assert "no subspace leads" in marks(nothing)[0].text
        one = self.draw(np.zeros((1, 1, 2)))
        assert marks(one)[0].text == "One head each: mean squared cosine 1."

    def test_some_blank(self):
        angles = np.zeros((H, H, 2))
        angles[0] = np.nan
        figure = self.draw(angles)
        assert np.isnan(marks(figure)[0].values[0]).all()
        assert "Blank: no subspace leads" in figure.caption
        paper.render(figure, "pdf")


LOSS = np.array([0.5, 0.75])


class TestTransplant:
    def test_pictures(self):
        rng = np.random.default_rng(0)
        pictures = rng.integers(0, 256, (2, 6, 6, 3), np.uint8)
        figure = pictures_figure(pictures[0], pictures, LOSS, "Words.")
        *images, change = marks(figure)
        assert all(isinstance(image, ImageGrid) for image in images) and len(images) == 3
        gap = pictures[1].astype(float) - pictures[0]
        np.testing.assert_allclose(change.values, gap.mean(-1) / 127.5, atol=1e-6)
        assert figure.caption.startswith("Words. Loss 0.5 → 0.75 (+0.25).")
        same = pictures_figure(pictures[0], pictures[[0, 0]], LOSS[[0, 0]], "")
        assert isinstance(marks(same)[-1], Sentence) and "(not changed)" in same.caption
        paper.render(figure, "pdf"), paper.render(same, "pdf")

    def test_nats(self):
        nats = np.array([[1.0, 2, 3], [1.5, 2, 2]])
        figure = nats_figure(nats, ("a", "b", "c"), LOSS[::-1], "")
        change, lines = marks(figure)
        assert isinstance(change, Tokens)
        np.testing.assert_allclose(change.values, [0.5, 0, -1])
        np.testing.assert_array_equal([line.y for line in lines.series], nats)
        assert "(−0.25)" in figure.caption
        paper.render(figure, "pdf")
        rounded = nats_figure(nats[[0, 0]] + [[0], [1e-6]], ("a", "b", "c"), LOSS, "")
        assert isinstance(marks(rounded)[0], Sentence)
        short = nats_figure(nats[:, :1], ("a",), LOSS, "")
        assert marks(short)[1] == Sentence("One byte: 1, 1.5.")

    def test_probabilities(self):
        p = np.array([[0.9, 0.1], [0.4, 0.6]])
        figure = probabilities_figure(p, ("bag", "boot"), LOSS, "")
        both, change = marks(figure)
        np.testing.assert_allclose(both.values, p.T, rtol=1e-6)
        np.testing.assert_allclose(change.values[:, 0], [-0.5, 0.5], rtol=1e-6)
        assert isinstance(marks(probabilities_figure(p[[0, 0]], ("bag", "boot"), LOSS, ""))[1],
                          Sentence)  # fmt: skip
        paper.render(figure, "pdf")
