import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from damcha import gallery
from damcha.cli import main


def run(*words):
    return CliRunner().invoke(main, ["figure", *map(str, words)])


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "it's a photo.gif"
    frames = [Image.new("L", (16, 12), shade) for shade in (30, 220)]
    frames[1].putpixel((3, 3), 0)
    frames[0].save(path, save_all=True, append_images=frames[1:])
    return path


def exports(out):
    with np.load(out.with_suffix(".npz")) as arrays:
        numbers = {name: arrays[name] for name in arrays.files if name != "provenance"}
    return numbers, json.loads(out.with_suffix(".json").read_text())


def test_a_figure_with_its_numbers_and_provenance(tiny_runs, picture, tmp_path):
    out = tmp_path / "fig.svg"
    result = run(
        "metric", "--run", tiny_runs / "fashion-damcha", "--input", picture, "--out", out,
        "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out}, fig.npz, fig.json\n"
    assert "note: " in result.stderr
    numbers, story = exports(out)
    assert numbers["metric"].shape == (16, 16)
    assert story["provenance"]["epoch"] == 10


@pytest.mark.parametrize(
    "options",
    [
        ("metric", "--view", "difference", "--position", "-2", "--epoch", "1"),
        ("metric", "--block", "1,0", "--invert", "--frame", "1", "--venue", "acl"),
        ("spectrum", "--position", "-1", "--column", "double"),
        ("answer", "--background", "0,10,20", "--invert"),
        ("attention-over-input", "--layer", "1", "--head", "1", "--query", "4"),
    ],
)
def test_the_command_it_names_makes_the_same_figure(tiny_runs, picture, tmp_path, options):
    out = tmp_path / "one.svg"
    folder = tiny_runs / "fashion-damcha"
    result = run(*options, "--run", folder, "--input", picture, "--out", out, "--device", "cpu")
    assert result.exit_code == 0, result.output
    numbers, story = exports(out)
    words = shlex.split(story["provenance"]["command"])
    assert words[:2] == ["damcha", "figure"]
    again = tmp_path / "two.svg"
    words[words.index("--out") + 1] = str(again)
    result = run(*words[2:])
    assert result.exit_code == 0, result.output
    numbers_again, story_again = exports(again)
    assert numbers.keys() == numbers_again.keys()
    for name, values in numbers.items():
        np.testing.assert_array_equal(values, numbers_again[name])
    assert story_again == story
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("typed", ["-x 'q'", "a\nb"])
def test_text(tiny_runs, tmp_path, typed):
    out = tmp_path / "t.png"
    result = run("surprise", "--run", tiny_runs / "text", "--text", typed, "--out", out)
    assert result.exit_code == 0, result.output
    words = shlex.split(exports(out)[1]["provenance"]["command"])
    assert words[words.index("--text") + 1] == typed


def test_curves_need_no_input(tiny_runs, tmp_path):
    out = tmp_path / "curves.pdf"
    result = run("curves", "--run", tiny_runs / "mha", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("text", (), "give the input as --input FILE, or as --text TEXT"),
        ("text", ("--text", " "), "the text is blank"),
        ("mha", ("--text", "a"), "--text: run 'mha' takes pictures; give one as --input FILE"),
        ("text", ("--text", "a", "--block", "1"), "--block 1: write it as A,B, e.g. --block 0,1"),
        ("mha", ("--input", "x", "--background", "1,2"), "write it as R,G,B"),
        ("mha", ("--input", "/no/such.png"), "such.png: no such file"),
        ("text", ("--text", "a", "--view", "odd"), "odd"),
        ("text", ("--text", "a", "--epoch", "7"), "no weights of epoch 7"),
        ("text", ("--text", "a", "--venue", "nature"), "venue: 'nature' is not known"),
        ("text", ("--text", "a", "--device", "tpu"), "device: 'tpu' is not one of"),
        ("nowhere", ("--text", "a"), "there is no run folder"),
    ],
)  # fmt: skip
def test_refusals_are_one_sentence_and_leave_no_file(tiny_runs, tmp_path, name, words, message):
    result = run("metric", "--run", tiny_runs / name, *words, "--out", tmp_path / "x.pdf")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("damcha: ") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("magic",), "magic: no such figure; choose from ablation, ablation-set"),
        (("answer", "--view", "full"), "No such option"),
    ],
)
def test_unknown_kinds_and_options(words, message):
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("damcha: ") and result.stderr.count("\n") == 1


def test_every_kind_says_what_it_takes():
    for kind in gallery.KINDS:
        result = run(kind, "--help")
        assert result.exit_code == 0, result.output
        assert "--out" in result.output


def test_formats_of_other_kinds_are_refused(tiny_runs, tmp_path):
    result = run("curves", "--run", tiny_runs / "mha", "--out", tmp_path / "x.docx")
    assert result.exit_code == 2
    assert "docx" in result.stderr
