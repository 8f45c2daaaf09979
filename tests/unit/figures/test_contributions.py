import numpy as np
import pytest

from damcha.errors import InputError
from damcha.figures.contributions import comparison_figure, contributions_figure, error_note
from damcha.figures.spec import Sentence


@pytest.fixture
def layers():
    return np.random.default_rng(0).standard_normal((3, 8, 8)).astype(np.float32)


def cut(values):
    return values.reshape(2, 4, 2, 4).sum((1, 3))


def test_blocks_sum_their_entries(layers):
    drawn = contributions_figure(layers, 2, "the loss").panels[0].mark
    np.testing.assert_allclose(drawn.values, cut(layers.sum(0)), rtol=1e-5)
    assert drawn.scale.limits[0] == -drawn.scale.limits[1]
    one = contributions_figure(layers, 2, "the loss", layer=1, absolute=True)
    np.testing.assert_allclose(one.panels[0].mark.values, cut(np.abs(layers[1])), rtol=1e-5)
    assert one.panels[0].mark.scale.limits[0] == 0 and "absolute" in one.title


def test_layers_share_a_scale_and_heads_sum_rows(layers):
    figure = contributions_figure(layers, 2, "x", view="layers")
    assert len({panel.mark.scale for panel in figure.panels}) == 1 and len(figure.panels) == 3
    heads = contributions_figure(layers, 2, "x", view="heads").panels[0].mark.values
    np.testing.assert_allclose(heads[2], cut(layers[2]).sum(1), rtol=1e-5)
    entries = contributions_figure(layers, 2, "x", view="metric").panels[0].mark.values
    np.testing.assert_allclose(entries, layers.sum(0), rtol=1e-5)


def test_two_runs_at_one_scale(layers):
    figure = comparison_figure([("off", layers, 2), ("on", 3 * layers[:2], 2)], "x")
    assert figure.n_columns == 3 and figure.panels[3].row_title == "on"
    assert figure.panels[0].mark.scale == figure.panels[4].mark.scale
    assert figure.panels[5].mark == Sentence("no such layer")


def test_nothing_to_draw(layers):
    assert "0" in contributions_figure(layers * 0, 2, "x").panels[0].mark.text
    with pytest.raises(InputError, match="layer: 3 is not one of 0 to 2"):
        contributions_figure(layers, 2, "x", layer=3)


def test_the_completeness_error_is_said():
    said = error_note(1.0, 3.0, 0.02)
    assert "completeness error 0.02 (1.00% of the change)" in said
    assert error_note(1.5, None, None) == "F = 1.5."
