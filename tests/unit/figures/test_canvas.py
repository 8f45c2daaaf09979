from dataclasses import replace

import numpy as np
import pytest

from damcha.errors import InputError
from damcha.figures import canvas
from damcha.figures.canvas import drawable, from_canvas, to_canvas
from damcha.figures.metric import metric_figure
from damcha.figures.spec import Bars, Figure, Heatmap, ImageGrid, Lines, Panel, Scale, Tokens


@pytest.fixture
def metric():
    return np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)


def cells(values, limits=(-3.0, 3.0)):
    names = tuple(map(str, range(len(values))))
    return Figure(name="m", panels=(Panel(Heatmap(values, Scale(limits), names, names)),))


def test_numbers_limits_and_words_are_those_of_the_figure(metric):
    figure = metric_figure(metric, 4)
    head, (frames,) = from_canvas(to_canvas([figure], 600))
    np.testing.assert_array_equal(frames[0], metric)
    assert tuple(head["scales"][0]["limits"]) == figure.panels[0].mark.scale.limits
    assert head["title"] == figure.title and head["room"] == 600
    panel = head["panels"][0]
    assert panel["rowLines"] == [3.5, 7.5, 11.5] and panel["xLabel"] == "key head b"
    assert panel["rowLabels"][5] == "query head 1, i 1"


def test_all_marks_but_curves(metric):
    picture = np.full((3, 4), 200, np.uint8)
    tokens = Tokens(("a", "␠", "<b>"), np.array([1, 2, 3], np.float32), Scale((0, 3), "sequential"))
    marks = (ImageGrid((picture,)), tokens, Bars(("x", "y"), np.array([0.25, 0.5])))
    figure = Figure(name="all", panels=tuple(map(Panel, marks)), n_columns=2)
    assert drawable(figure)
    content = to_canvas([figure], 500, dark=True)
    head, values = from_canvas(content)
    assert [panel["mark"] for panel in head["panels"]] == ["picture", "cells", "bars"]
    assert head["panels"][1]["texts"] == ["a", "␣", "<b>"]
    np.testing.assert_array_equal(values[1][0], [[1, 2, 3]])
    assert head["panels"][2]["values"] == [0.25, 0.5]
    size = int.from_bytes(content[:4], "little")
    assert content[4 + size : 8 + size] == bytes([200, 200, 200, 255])
    assert not drawable(Figure(name="l", panels=(Panel(Lines(())),)))


def test_frames_share_a_scale_and_a_layout(metric):
    frames = [cells(metric), cells(-metric)]
    head, (values,) = from_canvas(to_canvas(frames, 400, labels=("epoch 0", "epoch 1")))
    assert head["frames"] == ["epoch 0", "epoch 1"]
    np.testing.assert_array_equal(values[1], -metric)
    with pytest.raises(InputError, match="frames: all must have the scales and shapes"):
        to_canvas([cells(metric), cells(metric, (-4.0, 4.0))], 400)
    with pytest.raises(InputError, match="frames: all must have"):
        to_canvas([cells(metric), cells(metric[:8, :8])], 400)
    lines = Figure(name="l", panels=(Panel(Lines(())),))
    with pytest.raises(InputError, match="figure 'l' has a mark that a canvas cannot draw"):
        to_canvas([lines], 400)


def test_an_equal_frame_is_sent_once(metric):
    one, three = (to_canvas([cells(metric)] * n, 400, labels=("",) * n) for n in (1, 3))
    assert len(three) - len(one) < 100


def test_many_frames_are_sent_as_codes(metric, monkeypatch):
    monkeypatch.setattr(canvas, "CODED_ABOVE", 1000)
    values = metric.clip(-3, 3)
    values[0, :3] = -3, 3, np.nan
    content = to_canvas([cells(values), cells(metric.clip(-3, 3))], 400, labels=("a", "b"))
    head, (exact,) = from_canvas(content)
    panel = head["panels"][0]
    assert panel["codes"] and exact == []
    size = int.from_bytes(content[:4], "little")
    codes = np.frombuffer(content[4 + size :], np.uint8, 256, panel["at"][0]).reshape(16, 16)
    assert codes[0, :3].tolist() == [0, 254, 255]
    back = -3 + codes / 254 * 6
    np.testing.assert_allclose(back[1:], values[1:], atol=6 / 254 / 2 + 1e-6)


def test_dark_pages_have_their_own_colours(metric):
    light, dark = (from_canvas(to_canvas([cells(metric)], 9, d))[0] for d in (False, True))
    assert light["scales"][0]["stops"][8] == "#ffffff" != dark["scales"][0]["stops"][8]
    assert light["theme"]["text"] != dark["theme"]["text"]


def test_a_title_with_strange_signs_survives(metric):
    figure = replace(cells(metric), title='né "🙂" ⏎')
    assert from_canvas(to_canvas([figure], 9))[0]["title"] == 'né "🙂" ↵'
