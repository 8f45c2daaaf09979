"""Page widths and colours."""

import numpy as np
import pytest
from tueplots import figsizes

from damcha.errors import InputError
from damcha.figures.spec import Scale
from damcha.figures.style import (
    VENUES,
    ink_on,
    luminance,
    number,
    stops,
    symmetric_scale,
    thin,
)


@pytest.mark.parametrize(
    ("venue", "single", "double"),
    [
        ("neurips", figsizes.neurips2024, figsizes.neurips2024),
        ("iclr", figsizes.iclr2024, figsizes.iclr2024),
        ("icml", figsizes.icml2024_half, figsizes.icml2024_full),
        ("cvpr", figsizes.cvpr2024_half, figsizes.cvpr2024_full),
        ("aaai", figsizes.aaai2024_half, figsizes.aaai2024_full),
        ("uai", figsizes.uai2023_half, figsizes.uai2023_full),
        ("aistats", figsizes.aistats2023_half, figsizes.aistats2023_full),
        ("eccv", figsizes.eccv2024, figsizes.eccv2024),
        ("jmlr", figsizes.jmlr2001, figsizes.jmlr2001),
        ("tmlr", figsizes.tmlr2023, figsizes.tmlr2023),
    ],
)
def test_widths_are_those_of_tueplots(venue, single, double):
    widths = tuple(size()["figure.figsize"][0] for size in (single, double))
    assert VENUES[venue] == pytest.approx(widths, abs=0.005)


@pytest.mark.parametrize("dark", [False, True])
def test_diverging_colours_are_neutral_at_zero_and_even_on_both_sides(dark):
    colours = stops("diverging", dark)
    middle = colours[len(colours) // 2]
    assert middle[1:3] == middle[3:5] == middle[5:7]
    light = np.array([luminance(colour) for colour in colours])
    np.testing.assert_allclose(light, light[::-1], atol=0.08)
    arm = np.diff(light[len(light) // 2 :])
    assert (arm > 0).all() if dark else (arm < 0).all()


@pytest.mark.parametrize("dark", [False, True])
def test_sequential_colours_are_monotonic(dark):
    steps = np.diff([luminance(colour) for colour in stops("sequential", dark)])
    assert (steps > 0).all() if dark else (steps < 0).all()


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_in_cells_can_be_read(dark):
    scale = Scale((0.0, 1.0), "sequential")
    for value, colour in zip(np.linspace(0, 1, 9), stops("sequential", dark), strict=True):
        pair = sorted((luminance(colour), luminance(ink_on(scale, float(value), dark))))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 3.5


def test_symmetric_scale():
    assert symmetric_scale(np.array([-3.0, 1.0]), np.array([2.0])).limits == (-3.0, 3.0)
    with pytest.raises(InputError, match="every value is 0"):
        symmetric_scale(np.zeros(3))


def test_thin_and_number():
    ticks = tuple((float(k), str(k)) for k in range(10))
    assert [text for _, text in thin(ticks, 4)] == ["0", "3", "6", "9"]
    assert thin(ticks, 99) == ticks
    assert number(-0.123456) == "−0.1235"
