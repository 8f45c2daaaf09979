"""A figure comes back from its file as it was; anything else is refused in one sentence."""

import json

import numpy as np
import pytest
import safetensors.numpy

from damcha.errors import InputError
from damcha.figures import sidecar, stored
from damcha.figures.compose import compose
from damcha.figures.spec import Figure, Panel, Sentence


def test_a_figure_comes_back(figure):
    again = stored.from_bytes(stored.to_bytes(figure))
    assert sidecar.to_json(again) == sidecar.to_json(figure)
    assert sidecar.to_npz(again) == sidecar.to_npz(figure)
    assert sidecar.to_csv(again) == sidecar.to_csv(figure)


def test_equal_figures_give_equal_bytes(figure):
    content = stored.to_bytes(figure)
    assert stored.to_bytes(stored.from_bytes(content)) == content


def test_a_composition_comes_back(every):
    made = compose(list(every.values()), 3)
    again = stored.from_bytes(stored.to_bytes(made))
    assert sidecar.to_npz(again) == sidecar.to_npz(made)


def test_arrays_keep_their_kinds():
    arrays = {
        "f64": np.array([1.5, np.nan]), "i32": np.array([1], np.int32), "yes": np.array([True]),
        "z": np.array([1 + 2j]), "words": np.array(["a", "\ud800"]), "none": np.zeros((0, 3)),
        "turned": np.arange(6.0).reshape(2, 3).T, "one": np.array(2.0),
    }  # fmt: skip
    figure = Figure(name="x", panels=(Panel(Sentence("nothing")),), arrays=arrays)
    again = stored.from_bytes(stored.to_bytes(figure)).arrays
    assert list(again) == list(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)


def _file(words, arrays=None):
    return safetensors.numpy.save(arrays or {}, {stored.FORMAT: json.dumps(words)})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04K\x01.",
        _file({"class": "Scale", "fields": {"limits": [-1, 1]}}),
        _file({"class": "Path", "fields": {}}),
        _file({"class": "Figure", "fields": {"name": "x"}}),
        _file({"class": "Figure", "fields": {"name": "x", "panels": {"array": "7"}}}),
        _file({"surprise": 1}),
        _file([[[]]]),
        safetensors.numpy.save({"a": np.ones(3)}),
        stored.to_bytes(Figure(name="x", panels=()))[:-1],
        b'\xff\xff\xff\xff\xff\xff\xff\x7f{"a":1}',
    ],
)
def test_what_is_no_figure_is_refused(content):
    with pytest.raises(InputError, match="not a figure that damcha stored"):
        stored.from_bytes(content)
