import dataclasses

import numpy as np
import pytest

from damcha.analysis.study import estimate
from damcha.analysis.subspaces import SMALL, SYSTEMS, Cell
from damcha.figures.paper import save
from damcha.figures.subspaces import advantage, outcome, subspaces_figure, subspaces_table

SIZE = dataclasses.replace(SMALL, widths=(2, 8), levels=(0.0, 1.0), seeds=3)


@pytest.fixture
def cells():
    rng = np.random.default_rng(0)
    found = []
    for width in SIZE.widths:
        for level in SIZE.levels:
            values = np.array([0.10, 0.05, 0.05, 0.10, 0.20])[:, None].repeat(3, 1)
            if level:
                values[1:3] = 0.4
            values = values + 0.001 * rng.standard_normal(values.shape)
            found.append(Cell(width, level, values, np.full(3, 0.05)))
    return found


def test_an_advantage_is_the_share_of_mha_s_error_that_is_saved():
    gains = advantage("regression", np.array([[0.2, 0.4], [0.1, 0.5]]))
    np.testing.assert_allclose(gains, [[0, 0], [0.5, -0.25]])
    gains = advantage("classification", np.array([[0.6, 0.8], [0.8, 0.7]]))
    np.testing.assert_allclose(gains, [[0, 0], [0.5, -0.5]])


def test_what_came_out_is_said_from_the_numbers(cells):
    none, all_ = outcome("regression", cells)
    assert none.startswith("At entanglement 0,") and all_.startswith("At entanglement 1,")
    assert none.count("(ahead)") == 2 and none.count("(behind)") == 1
    assert all_.count("(behind)") == 3 and all_.count("(no difference shown)") == 1


def test_figure_and_table_hold_the_values(cells, tmp_path):
    figure = subspaces_figure("regression", SIZE, cells)
    assert [panel.title for panel in figure.panels] == ["width 2"] * 2 + ["width 8"] * 2
    value, gain = (panel.mark for panel in figure.panels[:2])
    assert [s.name for s in value.series] == [*SYSTEMS, "Bayes-optimal"]
    assert [s.name for s in gain.series] == [s.name for s in value.series]  # so one look each
    assert not gain.series[0].y.any()
    np.testing.assert_allclose(gain.series[-1].y[0], np.mean(1 - 0.05 / cells[0].values[0]))
    low, mean, high = estimate(cells[1].values[3])
    bilinear = value.series[3]
    assert (bilinear.low[1], bilinear.y[1], bilinear.high[1]) == (low, mean, high)
    assert figure.arrays["advantage-8"].shape == (2, 5, 3)
    table = subspaces_table("regression", SIZE, cells)
    assert len(table.rows) == 4 * len(SYSTEMS) and table.rules == (4, 9, 14)
    assert table.rows[8][:3] == (2, 1.0, "DAMCHA, bilinear") and table.rows[8][4][0] == mean
    save(figure, tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
