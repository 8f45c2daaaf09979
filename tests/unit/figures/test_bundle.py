import io
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from damcha import gallery, open_run
from damcha.errors import InputError
from damcha.figures.bundle import Item, bundle, safe_name
from damcha.figures.compose import compose


@pytest.fixture(scope="module")
def upload():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def figures(tiny_runs, upload):
    run = open_run(tiny_runs / "fashion-damcha")
    mine = gallery.open_subject(run, 1, run.prepare(upload, name="my photo.png"), device="cpu")
    sample = gallery.open_subject(run, 10, run.samples[0], device="cpu")
    text = gallery.open_subject(open_run(tiny_runs / "text"), None, "a 'b' $c", device="cpu")
    return [gallery.metric(mine), gallery.metric(sample), gallery.surprise(text)]


def written(items, **settings):
    options = {"venue": "neurips", "column": "single", "threads": 1} | settings
    *steps, content = bundle(items, **options)
    assert steps == list(range(len(items)))
    return content


@pytest.fixture(scope="module")
def archive(figures, upload):
    return written([Item(figure, {"my photo.png": upload}) for figure in figures])


def test_every_form_of_every_figure(archive, figures, upload):
    with zipfile.ZipFile(io.BytesIO(archive)) as found:
        names = set(found.namelist())
        for k, name in enumerate(("metric-full", "metric-full", "surprise"), 1):
            stem = f"{k:02d}-{name}"
            assert {f"figures/{stem}.{form}" for form in ("pdf", "svg", "png")} <= names
            assert {f"numbers/{stem}.{form}" for form in ("npz", "csv", "json")} <= names
        assert found.read("inputs/my-photo.png") == upload
        tex = found.read("figures.tex").decode()
        assert tex.count("\\begin{figure}") == tex.count("\\end{figure}") == 3
        assert "figures/03-surprise.pdf" in tex
        with np.load(io.BytesIO(found.read("numbers/01-metric-full.npz"))) as arrays:
            np.testing.assert_array_equal(arrays["metric"], figures[0].arrays["metric"])


def test_equal_figures_give_equal_bytes(archive, figures, upload):
    again = written([Item(figure, {"my photo.png": upload}) for figure in figures])
    assert archive == again


def test_the_script_makes_every_figure_again_bit_for_bit(archive, tmp_path):
    with zipfile.ZipFile(io.BytesIO(archive)) as found:
        found.extractall(tmp_path)
    assert torch.get_num_threads() == 1, "as the archive says"
    numbers = tmp_path / "numbers/02-metric-full.npz"
    with np.load(numbers) as arrays:
        changed = {name: arrays[name] for name in arrays.files}
    changed["metric"] = np.nextafter(changed["metric"], np.float32(9))
    np.savez(numbers, **changed)
    ran = subprocess.run(
        [sys.executable, "regenerate.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ran.stdout.split("\n")[:3] == [
        "01-metric-full is the same",
        "02-metric-full DIFFERS",
        "03-surprise is the same",
    ]


def test_two_uploads_of_one_name_stay_two(figures, upload):
    other = upload + b"\0"
    content = written([Item(figures[0], {"my photo.png": upload}),
                       Item(figures[0], {"my photo.png": other})])  # fmt: skip
    with zipfile.ZipFile(io.BytesIO(content)) as found:
        assert found.read("inputs/my-photo.png") == upload
        assert found.read("inputs/my-photo-2.png") == other
        script = found.read("regenerate.py").decode()
    assert "inputs/my-photo-2.png" in script


def test_an_empty_board_and_odd_names():
    with pytest.raises(InputError, match="the board is empty"):
        list(bundle([], "icml", "single", 1))
    assert safe_name("../../Ä b") == "b" and safe_name("§") == "figure"


def test_composition(figures):
    made = compose(figures[:2], 2)
    assert [panel.title[:3] for panel in made.panels] == ["(a)", "(b)"]
    assert "(a) Cross-head metric M" in made.panels[0].title
    assert made.caption.startswith("(a) ") and " (b) " in made.caption
    np.testing.assert_array_equal(made.arrays["b.metric"], figures[1].arrays["metric"])
    assert made.provenance.settings["parts"] == [f.provenance.command for f in figures[:2]]
    assert shlex.split(made.provenance.command) == []
    with pytest.raises(InputError, match="compose: 0 figures; take 1 to 26"):
        compose([], 2)
    with pytest.raises(InputError, match="compose: 0 columns"):
        compose(figures, 0)
    content = written([Item(replace(made, title="Both"), {})])
    with zipfile.ZipFile(io.BytesIO(content)) as found:
        assert found.read("figures/01-composed.pdf").startswith(b"%PDF")
