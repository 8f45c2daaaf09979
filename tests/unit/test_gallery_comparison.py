import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

from damcha import gallery, open_run
from damcha.analysis.comparison import distances
from damcha.cli import main
from damcha.errors import InputError
from damcha.figures.spec import Heatmap, Sentence
from damcha.gallery import comparison


@pytest.fixture
def opened(tiny_runs):
    def subject(name="fashion-damcha", k=0, epoch=None, text=None):
        run = open_run(tiny_runs / name)
        return gallery.open_subject(run, epoch, text or run.samples[k], device="cpu")

    return subject


def test_names_say_what_differs(opened):
    one = opened()
    assert comparison.names_of(one, opened(k=1)) == ("bag.png", "boot.png")
    assert comparison.names_of(one, opened(epoch=1)) == ("epoch 10", "epoch 1")
    assert comparison.names_of(one, opened()) == ("bag.png", "bag.png"), "opened twice, the same"
    layered = opened("unshared")
    assert comparison.names_of(layered, layered, 0, 1) == ("layer 0", "layer 1")
    names = comparison.names_of(one, layered, 1, 1)  # their samples are other pictures
    assert names == ("fashion-damcha, epoch 10, bag.png", "unshared, epoch 3, layer 1, bag.png")


def test_each_side_has_its_layer_and_position(opened):
    one, other = opened("unshared"), opened("unshared", k=1)
    figure = comparison.side_by_side(one, other, layer=0, other_layer=1, position=2)
    np.testing.assert_array_equal(figure.arrays["a"], one.metric(0, 2))
    np.testing.assert_array_equal(figure.arrays["b"], other.metric(1, 2))
    found = comparison.numbers(one, other, 0, 1, 2, "absolute")
    assert found == distances(one.metric(0, 2), other.metric(1, 2), "absolute")
    assert f"cosine {found.cosine:.4g}" in figure.caption.replace("−", "-")


def test_the_same_thing_twice(opened):
    figure = comparison.side_by_side(opened(), opened())
    assert isinstance(figure.panels[2].mark, Sentence)
    assert "every distance is 0" in figure.caption
    for draw in (comparison.spectra, comparison.angles, comparison.transplanted):
        draw(opened(), opened())
    assert "(not changed)" in comparison.transplanted(opened(), opened()).caption


def test_runs_trained_apart_are_called_so(opened):
    figures = [draw(opened(), opened("bilinear")) for draw in (comparison.side_by_side,
               comparison.angles, comparison.transplanted)]  # fmt: skip
    assert all("trained apart" in figure.caption for figure in figures)
    assert "trained apart" not in comparison.side_by_side(opened(), opened(epoch=1)).caption


def test_no_metric(opened):
    for draw in (comparison.side_by_side, comparison.spectra, comparison.transplanted):
        for pair in ((opened(), opened("moa")), (opened("moa"), opened())):
            with pytest.raises(InputError, match="run 'moa' uses moa, which has no cross-head"):
                draw(*pair)


def test_other_heads(opened, tiny_runs, task_config, tmp_path):
    import torch

    from damcha.checkpoint.weights import write_weights
    from damcha.model import build_model

    config = task_config(name="wide", d_model=32, n_heads=4)
    (tmp_path / "config.json").write_text(config.to_json())
    torch.manual_seed(0)
    weights = build_model(config).float().state_dict()
    write_weights(tmp_path / "epoch-0000.safetensors", weights, None, {"epoch": "0"})
    one = opened()
    wide = gallery.open_subject(open_run(tmp_path), 0, one.run.samples[0], device="cpu")
    for draw in (comparison.side_by_side, comparison.angles, comparison.transplanted):
        with pytest.raises(InputError, match="2 heads in width 16 and 4 heads in width 32: their"):
            draw(one, wide)
    assert "The widths differ" in comparison.spectra(one, wide).caption


class TestTransplant:
    def test_a_layer_or_a_position_is_chosen_where_this_model_has_one_metric(self, opened):
        one, layered = opened(), opened("unshared")
        with pytest.raises(InputError, match="choose one layer of the other"):
            comparison.swap(one, layered)
        found = comparison.swap(one, layered, other_layer=1)
        assert found.loss[0] != found.loss[1]
        with pytest.raises(InputError, match="layer: 7 is not one of 0 to 1"):
            comparison.swap(one, layered, other_layer=7)
        whole = opened("classes")
        last, first = (comparison.transplanted(whole, one, position=k) for k in (-1, 0))
        assert "the other's of position 4." in last.caption
        assert "the other's of position 0." in first.caption
        assert last.arrays["loss"][1] != first.arrays["loss"][1]
        back = comparison.transplanted(one, whole)
        assert "The other's one metric serves every query." in back.caption

    def test_texts_of_other_lengths(self, opened):
        long, short = opened("text", text="abcdefgh"), opened("text", text="xy")
        assert comparison.swap(short, long).nats.shape == (2, 2)
        with pytest.raises(InputError, match="choose one that is at least as long"):
            comparison.swap(long, short)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("compare", ("--view", "blocks", "--position", "1")),
        ("compare", ("--other-run", "unshared", "--other-layer", "1")),
        ("compare-spectra", ("--other-epoch", "1")),
        ("compare-angles", ("--rank", "3", "--side", "key", "--measure", "largest")),
        ("transplant", ("--other-run", "unshared", "--other-layer", "1")),
        ("transplant", ()),
    ],
)
def test_the_command_it_names_makes_the_same_figure(tiny_runs, opened, tmp_path, kind, options):
    run = open_run(tiny_runs / "fashion-damcha")
    options = [str(tiny_runs / o) if o == "unshared" else o for o in options]

    def exports(name, words):
        out = tmp_path / name
        result = CliRunner().invoke(main, ["figure", *words, "--out", str(out)])
        assert result.exit_code == 0, result.output
        with np.load(out.with_suffix(".npz")) as arrays:
            numbers = {key: arrays[key] for key in arrays.files if key != "provenance"}
        return numbers, json.loads(out.with_suffix(".json").read_text())

    samples = list(map(str, run.samples))
    given = ["--run", str(run.path), "--input", samples[0], "--other-input", samples[1]]
    numbers, story = exports("one.svg", [kind, *given, *options])
    words = shlex.split(story["provenance"]["command"])
    assert words[:2] == ["damcha", "figure"]
    again, story_again = exports("two.svg", words[2 : words.index("--out")])
    assert story_again == story and numbers.keys() == again.keys()
    for name, values in numbers.items():
        np.testing.assert_array_equal(values, again[name])


def test_what_is_not_given_is_the_first_sides(tiny_runs, tmp_path):
    run, out = open_run(tiny_runs / "fashion-damcha"), tmp_path / "x.svg"
    words = ["compare", "--run", run.path, "--input", run.samples[0], "--epoch", "1"]
    result = CliRunner().invoke(main, ["figure", *map(str, [*words, "--out", out])])
    assert result.exit_code == 0, result.output
    with np.load(out.with_suffix(".npz")) as arrays:
        np.testing.assert_array_equal(arrays["a"], arrays["b"])


def test_block_norms_differ_by_blocks(opened):
    one, other = opened(), opened(k=1)
    mark = comparison.side_by_side(one, other, "blocks").panels[2].mark
    assert isinstance(mark, Heatmap) and mark.values.shape == (2, 2)
    e = 8
    norms = [np.linalg.norm(s.metric()[:e, e:]) for s in (one, other)]
    assert mark.values[0, 1] == pytest.approx(norms[0] - norms[1], abs=1e-5)
