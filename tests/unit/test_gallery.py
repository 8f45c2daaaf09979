import io
import shlex

import numpy as np
import pytest
import torch
from PIL import Image

from damcha import gallery, open_run, tap
from damcha.analysis.geometry import describe
from damcha.analysis.inspection import attention_maps
from damcha.errors import InputError


@pytest.fixture(scope="module")
def image_run(tiny_runs):
    return open_run(tiny_runs / "fashion-damcha")


@pytest.fixture(scope="module")
def subject(image_run):
    return gallery.open_subject(image_run, 1, image_run.samples[0], device="cpu")


@pytest.fixture(scope="module")
def text(tiny_runs):
    return gallery.open_subject(open_run(tiny_runs / "text"), None, "né 1", device="cpu")


def words(figure):
    return shlex.split(figure.provenance.command)


def test_the_last_epoch_is_the_default(image_run):
    assert gallery.open_subject(image_run, None, image_run.samples[0], device="cpu").epoch == 10


def test_the_metric_is_the_captured_one(image_run, subject):
    model = image_run.load(1, "cpu")
    with torch.no_grad(), tap(model) as capture:
        model(image_run.prepare(image_run.samples[0]).inputs)
    np.testing.assert_array_equal(subject.metric(0, 2), capture.metric[2])
    figure = gallery.metric(subject, position=2)
    np.testing.assert_array_equal(figure.arrays["metric"], capture.metric[2])
    assert gallery.geometry(subject, position=2).norm == describe(subject.metric(0, 2), 2).norm


def test_difference_from_the_mean(subject):
    figure = gallery.metric(subject, "difference", position=1)
    np.testing.assert_allclose(figure.arrays["view"], subject.metric(0, 1) - 0.25, atol=1e-6)


def test_names_of_metrics(subject, tiny_runs):
    assert subject.source_names == ("all layers",)
    run = open_run(tiny_runs / "unshared")
    layered = gallery.open_subject(run, None, run.samples[0], device="cpu")
    assert layered.source_names == ("layer 0", "layer 1")


def test_the_note_is_for_row_sums_only(subject, tiny_runs):
    assert "R_a" in (gallery.metric_note(subject) or "")
    run = open_run(tiny_runs / "bilinear")
    other = gallery.open_subject(run, None, run.samples[0], device="cpu")
    assert gallery.metric_note(other) is None


class TestCommand:
    def test_settings_and_the_inputs_path(self, image_run, subject):
        figure = gallery.metric(subject, "full", position=-1, block=(0, 1))
        last = subject.inspection.metrics.shape[1] - 1
        assert words(figure) == [
            "damcha", "figure", "metric", "--run", str(image_run.path), "--epoch", "1",
            "--input", str(image_run.samples[0]), "--view", "full", "--layer", "0",
            "--position", str(last), "--block", "0,1", "--out", "metric.pdf",
        ]  # fmt: skip
        assert figure.provenance.input_digest == subject.example.digest

    def test_how_the_picture_was_prepared(self, image_run):
        frames = [Image.new("L", (12, 12), shade) for shade in (20, 200)]
        out = io.BytesIO()
        frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
        shown = gallery.open_subject(
            image_run, 1, out.getvalue(), device="cpu", name="two.gif", frame=1, invert=True,
            background=(0, 0, 0),
        )  # fmt: skip
        figure = gallery.answer(shown)
        assert "--frame 1 --background 0,0,0 --invert" in figure.provenance.command
        assert figure.provenance.settings == {"frame": 1, "background": (0, 0, 0), "invert": True}

    def test_a_sample_given_as_bytes_is_found_again(self, image_run):
        sample = image_run.samples[1]
        content = sample.read_bytes()
        shown = gallery.open_subject(image_run, 1, content, device="cpu", name=sample.name)
        assert str(sample) in words(gallery.answer(shown))
        other = Image.new("L", (12, 12))
        out = io.BytesIO()
        other.save(out, "PNG")
        shown = gallery.open_subject(image_run, 1, out.getvalue(), device="cpu", name=sample.name)
        assert str(sample) not in words(gallery.answer(shown))

    @pytest.mark.parametrize("typed", ["it's $HOME", "-x\n`a`", "né 🙂"])
    def test_text_survives_the_shell(self, text, typed):
        shown = gallery.open_subject(text.run, None, typed, device="cpu")
        found = words(gallery.surprise(shown))
        assert found[found.index("--text") + 1] == typed


class TestAnswer:
    def test_next_byte_or_the_last_where_the_text_fills_the_model(self, text):
        assert gallery.answer(text).title == "Next byte"
        full = gallery.open_subject(text.run, None, "0123456789", device="cpu")
        assert gallery.answer(full).title.startswith("Last byte, from those before it")

    def test_every_kind_of_one_input_is_drawn(self, subject, text, tiny_runs):
        run = open_run(tiny_runs / "classes")
        classes = gallery.open_subject(run, None, run.samples[0], device="cpu")
        for one in (subject, text, classes):
            for name, kind in gallery.KINDS.items():
                if kind.of != "subject" or (name == "surprise" and one is not text):
                    continue
                made = kind.draw(one)
                assert made.provenance.weights_digest == one.run.weights_digest(one.epoch)


class TestAttentionOverInput:
    def test_each_weight_lies_on_the_token_it_belongs_to(self, subject):
        maps = attention_maps(subject.run.load(1, "cpu"), subject.example, 0)
        figure = gallery.attention_over_input(subject, 0, 1, 4, maps)
        assert f"({maps[1, 4, 0]:.0%} on the start token)" in figure.panels[0].title + figure.title
        drawn = figure.arrays["weights"]
        flat = np.asarray(drawn).ravel()
        np.testing.assert_allclose(flat[:4], maps[1, 4, 1:5], rtol=1e-6)
        assert np.isnan(flat[4:]).all()  # the future, and the last patch, which nobody reads


class TestHeldOut:
    def test_the_command_names_data_that_lie_elsewhere(self, image_run, tmp_path):
        from pathlib import Path

        from damcha.gallery.subject import set_provenance

        shipped = Path(__file__).resolve().parents[2] / "checkpoints"
        run = open_run(shipped / "fashion-damcha")
        snapshot = gallery.open_snapshot(run, None, "cpu")
        assert (
            "--data" not in set_provenance(snapshot, run.evaluation_set(n=3), "atlas", {}).command
        )
        (tmp_path / "fashion_mnist").symlink_to(shipped / "data" / "fashion_mnist")
        moved = run.evaluation_set(tmp_path / "fashion_mnist", 3)
        found = shlex.split(set_provenance(snapshot, moved, "atlas", {}).command)
        assert found[found.index("--data") + 1] == str(tmp_path / "fashion_mnist")
        assert found[found.index("--n") + 1] == "3"


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            ("metric", {"layer": 1}, "layer: 1 is not one of 0 to 0"),
            ("metric", {"position": 99}, "position: 99 is not one of 0 to"),
            ("surprise", {}, "does not model text"),
            ("attention", {"layer": 7}, "there is no layer 7"),
            ("attention", {"head": -1}, "there is no head -1"),
            ("attention-over-input", {"query": 99}, "query: 99 is not one of 0 to 8"),
        ],
    )  # fmt: skip
    def test_options(self, subject, kind, options, message):
        with pytest.raises(InputError, match=message):
            gallery.KINDS[kind].draw(subject, **options)

    def test_no_metric(self, tiny_runs):
        run = open_run(tiny_runs / "moa")
        plain = gallery.open_subject(run, None, run.samples[0], device="cpu")
        assert plain.source_names == ()
        with pytest.raises(InputError, match="run 'moa' uses moa, which has no cross-head metric"):
            gallery.metric(plain)

    def test_no_mean(self, text):
        with pytest.raises(InputError, match="run 'text' has no data-set mean for epoch 10"):
            gallery.metric(text, "difference")
