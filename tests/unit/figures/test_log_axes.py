"""Logarithmic axes on paper are labelled in plain, short numbers."""

import numpy as np
import pytest

from damcha.figures import paper
from damcha.figures.spec import Figure, Lines, Panel, Series


@pytest.mark.parametrize(
    ("values", "expected"),
    [((0.9, 1.6), {"1"}), ((0.8, 4.5), {"1", "2"}), ((0.05, 3.0), {"0.1", "0.5", "1", "2"})],
)
def test_short_numbers(values, expected):
    line = Series("a", np.array([1.0, 2.0]), np.array(values))
    figure = Figure(name="x", panels=(Panel(Lines((line,), log_y=True)),))
    page = paper.draw(figure)
    axes = page.axes[0]
    page.canvas.draw()
    low, high = axes.get_ylim()
    labels = {
        label.get_text()
        for label in axes.get_yticklabels()
        if label.get_text() and low <= label.get_position()[1] <= high
    }
    assert expected <= labels
    assert max(map(len, labels)) <= 4
