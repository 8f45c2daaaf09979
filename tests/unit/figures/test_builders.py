"""The other builders: numbers, sentences, bad input."""

import numpy as np
import pytest

from damcha.errors import InputError
from damcha.figures import (
    attention_figure,
    attention_over_input_figure,
    curves_figure,
    distribution_figure,
    reconstruction_figure,
    spectrum_figure,
)
from damcha.figures.spec import Bars, Heatmap, ImageGrid, Lines, Scale, Sentence, Tokens, mosaic

PICTURE = np.zeros((4, 4), np.uint8)


def test_attention_numbers_repeated_labels():
    heat = attention_figure(np.array([[1, 0], [0.5, 0.5]]), ["a", "a"]).panels[0].mark
    assert heat.row_labels == ("query 0: a", "query 1: a")
    assert heat.scale == Scale((0.0, 1.0), "sequential", "weight")


def test_attention_over_text_leaves_the_future_blank():
    tokens = attention_over_input_figure(np.array([0.75, 0.25, np.nan]), list("abc")).panels[0].mark
    assert isinstance(tokens, Tokens)
    assert tokens.scale.limits == (0.0, 0.75) and np.isnan(tokens.values[2])


def test_attention_over_a_picture():
    panels = attention_over_input_figure(np.array([0.1, 0.2, 0.3, 0.4]), PICTURE).panels
    assert isinstance(panels[0].mark, ImageGrid)
    np.testing.assert_allclose(panels[1].mark.values, [[0.1, 0.2], [0.3, 0.4]])


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([0.5, 0.5], "constant, every value is 0.5."),
        ([1.0, np.nan], "a single value, 1."),
        ([np.nan, np.nan], "every weight is NaN"),
        ([np.inf, 1.0], "1 of 2 values are NaN or infinite"),
    ],
)
def test_attention_sentences(weights, said):
    panel = attention_over_input_figure(np.array(weights), ["a", "b"]).panels[0]
    assert said in panel.mark.text


def test_attention_that_does_not_fit():
    with pytest.raises(InputError, match="1 labels for attention"):
        attention_figure(np.eye(2), ["a"])
    with pytest.raises(InputError, match=r"one matrix \[L, L\], not \(2,\)"):
        attention_figure(np.ones(2), ["a", "b"])
    with pytest.raises(InputError, match=r"one query has weights \[L\], not \(2, 2\)"):
        attention_over_input_figure(np.eye(2), ["a", "b"])
    with pytest.raises(InputError, match="3 patches make no square"):
        attention_over_input_figure(np.arange(3.0), PICTURE)
    with pytest.raises(InputError, match="3 weights for 2 tokens"):
        attention_over_input_figure(np.arange(3.0), ["a", "b"])


def test_spectrum_of_an_identity_is_points_and_a_sentence():
    figure = spectrum_figure(np.ones(3, complex), np.ones(3))
    assert figure.panels[1].mark == Sentence("Singular values: constant, every value is 1.")


def test_spectrum_with_a_zero_is_not_logarithmic():
    mark = spectrum_figure(np.arange(3) + 0j, np.array([0.0, 2.0, 1.0])).panels[1].mark
    assert isinstance(mark, Lines) and not mark.log_y
    assert mark.series[0].y.tolist() == [2.0, 1.0, 0.0]


def test_spectrum_of_nan_is_sentences():
    figure = spectrum_figure(np.array([np.nan, 1]), np.array([np.nan, 1]))
    assert all("1 of 2 values are NaN" in panel.mark.text for panel in figure.panels)


def test_curves_take_every_loss_and_leave_gaps():
    rows = [
        {"epoch": 1, "train_loss": 2.0, "lr": 0.1},
        {"epoch": 2, "train_loss": float("nan")},
        {"epoch": 10, "train_loss": 1.0, "valid_loss": 1.5},
    ]
    figure = curves_figure(rows)
    lines = figure.panels[0].mark
    assert [line.name for line in lines.series] == ["train loss", "valid loss"]
    assert lines.series[0].x.tolist() == [1, 2, 10]
    assert "3 values are missing" in figure.caption


def test_one_epoch_and_no_epoch_are_sentences():
    one = curves_figure([{"epoch": 0, "train_loss": 0.5}]).panels[0].mark
    assert one == Sentence("Training: one epoch only, train loss 0.5.")
    none = curves_figure([]).panels[0].mark
    assert none == Sentence("Training: no finite values were recorded.")


def test_curves_of_chosen_fields():
    rows = [{"epoch": k, "accuracy": k / 4} for k in range(3)]
    lines = curves_figure(rows, fields={"accuracy": "validation accuracy"}).panels[0].mark
    assert lines.series[0].y.tolist() == [0, 0.25, 0.5]


def test_reconstruction():
    error = np.array([[0.0, 1.0], [2.0, 3.0]])
    figure = reconstruction_figure(PICTURE, PICTURE, error)
    assert isinstance(figure.panels[2].mark, Heatmap)
    assert figure.caption == "Prediction. Mean squared error 1.5."
    exact = reconstruction_figure(PICTURE, PICTURE, np.zeros((2, 2))).panels[2].mark
    assert exact == Sentence("Squared error: constant, every value is 0.")
    with pytest.raises(InputError, match=r"its size \(2, 2\) is not that of the picture seen"):
        reconstruction_figure(PICTURE, PICTURE[:2, :2], error)
    with pytest.raises(InputError, match=r"a map \[rows, columns\], not \(2,\)"):
        reconstruction_figure(PICTURE, PICTURE, error[0])


def test_distribution_is_sorted_and_says_what_is_left():
    figure = distribution_figure(np.array([0.1, 0.6, 0.3]), ["a", "b", "c"], 2)
    bars = figure.panels[0].mark
    assert isinstance(bars, Bars) and bars.labels == ("b", "c")
    assert "The other 1 share 0.1." in figure.caption
    bad = distribution_figure(np.array([np.nan, 1]), ["a", "b"]).panels[0].mark
    assert "1 of 2 values are NaN" in bad.text
    with pytest.raises(InputError, match="values for 1 labels"):
        distribution_figure(np.ones(2), ["a"])


def test_mosaic_leaves_gaps_transparent():
    grid = ImageGrid((PICTURE, PICTURE, PICTURE + 9), n_columns=2)
    out = mosaic(grid)
    assert out.shape == (9, 9, 4)
    assert out[0, 4, 3] == 0 and out[8, 0, 0] == 9 and out[8, 8, 3] == 0


def test_heatmap_refuses_labels_that_do_not_fit():
    with pytest.raises(InputError, match="do not fit 1 row labels and 2 column labels"):
        Heatmap(np.zeros((2, 2)), Scale((0.0, 1.0), "sequential"), ("a",), ("a", "b"))


def test_mixed_probabilities_are_drawn_with_their_sign():
    """Talking heads and DCMHA mix after the softmax: weights may be negative, rows not sum to 1."""
    weights = np.array([[1.2, -0.1], [-0.4, 0.9]])
    figure = attention_figure(weights, ["a", "b"])
    scale = figure.panels[0].mark.scale
    assert scale.colours == "diverging" and scale.limits == pytest.approx((-1.2, 1.2))
    assert "rows do not sum to 1: heads are mixed after the softmax" in figure.caption
    over = attention_over_input_figure(weights[1], ["a", "b"]).panels[0].mark
    assert over.scale.limits == pytest.approx((-0.9, 0.9))
    plain = attention_figure(np.array([[1.0, 0.0], [0.25, 0.75]]), ["a", "b"])
    assert plain.panels[0].mark.scale.limits == (0.0, 1.0)
    assert "each row sums to 1" in plain.caption
