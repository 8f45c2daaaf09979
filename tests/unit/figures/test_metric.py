"""The metric's figure: numbers, limits, words, level of detail, bad input."""

import numpy as np
import pytest

from damcha.errors import InputError
from damcha.figures import metric_figure
from damcha.figures.metric import pool, view_values
from damcha.figures.spec import Heatmap, Provenance, Sentence

D, H, E = 12, 3, 4


@pytest.fixture
def metric():
    return np.random.default_rng(0).normal(size=(D, D)).astype(np.float32)


def mark(figure, k=0):
    return figure.panels[k].mark


def test_full_view_shows_every_value_once(metric):
    heat = mark(metric_figure(metric, H))
    assert isinstance(heat, Heatmap)
    assert np.array_equal(heat.values, metric)
    v = float(np.abs(metric).max())
    assert heat.scale.limits == (-v, v)
    assert heat.row_lines == (3.5, 7.5)
    assert heat.row_labels[5] == "query head 1, i 1"
    assert heat.column_labels[11] == "key head 2, j 3"
    assert len(set(heat.row_labels)) == D


def test_views_add_up(metric):
    parts = {view: view_values(metric, H, view, None) for view in ("diagonal", "off_diagonal")}
    assert np.array_equal(parts["diagonal"] + parts["off_diagonal"], metric)
    symmetric = view_values(metric, H, "symmetric", None)
    antisymmetric = view_values(metric, H, "antisymmetric", None)
    np.testing.assert_allclose(symmetric + antisymmetric, metric, rtol=1e-6)
    assert np.array_equal(symmetric, symmetric.T)
    assert np.array_equal(antisymmetric, -antisymmetric.T)


def test_head_metrics_are_row_sums_on_one_scale(metric):
    figure = metric_figure(metric, H, "head_metrics")
    assert len(figure.panels) == H
    for a in range(H):
        rows = metric[a * E : (a + 1) * E]
        expected = sum(rows[:, b * E : (b + 1) * E] for b in range(H))
        np.testing.assert_allclose(mark(figure, a).values, expected, rtol=1e-5)
    assert len({mark(figure, a).scale for a in range(H)}) == 1


def test_blocks_are_frobenius_norms_that_can_be_clicked(metric):
    heat = mark(metric_figure(metric, H, "blocks"))
    assert heat.values.shape == (H, H)
    np.testing.assert_allclose(heat.values[1, 2], np.linalg.norm(metric[4:8, 8:12]), rtol=1e-6)
    assert heat.clickable and heat.scale.limits[0] == 0


def test_a_block_opens_in_full(metric):
    figure = metric_figure(metric, H, block=(2, 0), max_cells=2)
    assert np.array_equal(mark(figure).values, metric[8:12, 0:4])
    assert figure.title == "Cross-head metric M, block (2, 0)"
    assert mark(figure).row_labels[3] == "query head 2, i 3"
    head = metric_figure(metric, H, "head_metrics", block=(1, 1))
    assert mark(head).values.shape == (E, E)


def test_difference_from_a_reference(metric):
    figure = metric_figure(metric, H, "difference", reference=metric[::-1].copy())
    assert np.array_equal(mark(figure).values, metric - metric[::-1])
    same = metric_figure(metric, H, "difference", reference=metric)
    assert mark(same) == Sentence("M minus the reference metric: constant, every value is 0.")


def test_pooling_keeps_sign_extremes_and_blocks():
    values = np.zeros((20, 20), np.float32)
    values[3, 9], values[4, 0], values[3, 8] = -5, 2, 4
    pooled, k = pool(values, 5, 12)
    # Blocks of 5 become 3 cells of 2, 2 and 1: no cell mixes two blocks.
    assert k == 2 and pooled.shape == (12, 12)
    assert pooled[1, 5] == -5 and pooled[2, 0] == 2
    assert pooled[1, 4] == 4


def test_pooling_says_so():
    metric = np.random.default_rng(1).normal(size=(512, 512)).astype(np.float32)
    figure = metric_figure(metric, 8)
    heat = mark(figure)
    assert heat.values.shape == (256, 256) and heat.values.dtype == np.float32
    assert "2×2 cells pooled" in figure.title
    assert "largest in absolute terms" in figure.caption
    assert heat.scale.limits[1] == np.abs(metric).max()
    assert heat.row_labels[1] == "query head 0, i 2–3"
    assert figure.arrays["metric"] is metric


def test_given_limits_hold(metric):
    assert mark(metric_figure(metric, H, limits=(-9.0, 9.0))).scale.limits == (-9.0, 9.0)
    with pytest.raises(InputError, match=r"symmetric about zero, not -1\.0 to 2\.0"):
        metric_figure(metric, H, limits=(-1.0, 2.0))
    with pytest.raises(InputError, match="finite low < high"):
        metric_figure(metric, H, limits=(0.0, 0.0))


def test_caption_names_the_source(metric):
    source = Provenance(run="fashion-damcha", epoch=49, input_name="boot.png")
    caption = metric_figure(metric, H, provenance=source).caption
    assert caption.startswith("Cross-head metric M, run fashion-damcha, epoch 49, input boot.png.")


@pytest.mark.parametrize(
    ("metric", "heads", "view", "said"),
    [
        (np.full((4, 4), 0.25), 2, "full", "constant, every value is 0.25."),
        (np.zeros((4, 4)), 2, "blocks", "constant, every value is 0."),
        (np.array([[np.nan, 1], [2, np.inf]]), 1, "full", "2 of 4 values are NaN or infinite"),
        (np.array([[1e300, 1], [2, 3]]), 1, "full", "1 of 4 values are NaN or infinite"),
        (np.ones((1, 1)), 1, "full", "a single value, 1."),
        (np.ones((3, 3)), 1, "blocks", "a single value, 3."),
        (np.eye(4), 2, "off_diagonal", "constant, every value is 0."),
        (np.eye(4), 2, "antisymmetric", "constant, every value is 0."),
    ],
)
def test_a_sentence_where_a_chart_would_say_nothing(metric, heads, view, said):
    sentence = mark(metric_figure(metric, heads, view))
    assert isinstance(sentence, Sentence)
    assert said in sentence.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"view": "sideways"}, "'sideways' is not a view"),
        ({"metric": np.ones((3, 4))}, r"one square matrix \[d, d\], not \(3, 4\)"),
        ({"n_heads": 5}, "width 12 has no 5 equal heads"),
        ({"view": "difference"}, "needs the metric to subtract"),
        ({"reference": np.ones((2, 2))}, r"shape \(2, 2\) is not the metric's \(12, 12\)"),
        ({"max_cells": 0}, "0 is not a number of cells"),
        ({"block": (0, 3)}, r"\(0, 3\) is outside 0 to 2"),
        ({"block": (0, 1), "view": "blocks"}, "'blocks' shows every block"),
        ({"block": (0, 1), "view": "head_metrics"}, r"belongs to one head; use \(0, 0\)"),
        (
            {"metric": np.eye(65), "n_heads": 65, "view": "head_metrics"},
            "65 heads are more than the 64",
        ),
    ],
)
def test_arguments_that_do_not_fit(metric, change, message):
    with pytest.raises(InputError, match=message):
        metric_figure(**{"metric": metric, "n_heads": H} | change)
