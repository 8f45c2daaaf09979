import numpy as np
import pytest

from damcha import gallery, open_run
from damcha.gallery import comparison


@pytest.fixture
def subject(tiny_runs):
    def made(name="fashion-damcha", k=0, epoch=None):
        run = open_run(tiny_runs / name)
        return gallery.open_subject(run, epoch, run.samples[k], device="cpu")

    return made


def said(at):
    return "".join(mark.value for mark in at.markdown).replace("\\", "")


def test_two_samples_side_by_side(opened, charts, subject):
    at = opened("compare")
    one, other = subject(), subject(k=1)
    a, b, gap = charts(at)["compare"]
    np.testing.assert_allclose(a, one.metric(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(b, other.metric(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gap, a - b, atol=1e-6)
    found = comparison.numbers(one, other)
    assert f"Frobenius  \n**{found.frobenius:.4g}**" in said(at)
    assert "Affine-invariant  \n**none**" in said(at)
    assert all(mark.help for mark in at.markdown if mark.value.startswith("Frobenius"))
    assert not at.error


def test_what_stands_in_for_indefinite_ones(opened, subject):
    at = opened("compare", compare_indefinite="absolute")
    found = comparison.numbers(subject(), subject(k=1), indefinite="absolute")
    assert f"**{found.affine_invariant:.4g}**" in said(at)
    assert any("lose their sign" in caption.value for caption in at.caption)


def test_each_side_has_its_own(opened, charts, subject):
    at = opened("compare", epoch="1", position="3", compare_epoch="0")
    a, b, _ = charts(at)["compare"]
    np.testing.assert_allclose(a, subject(epoch=1).metric(0, 3), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(b, subject(epoch=0, k=1).metric(0, 3), rtol=1e-5, atol=1e-7)
    at = opened("compare", run="unshared", layer="0", compare_run="unshared", compare_layer="1",
                position="2", compare_kind="same")  # fmt: skip
    a, b, _ = charts(at)["compare"]
    layered = subject("unshared")
    np.testing.assert_allclose(a, layered.metric(0, 2), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(b, layered.metric(1, 2), rtol=1e-5, atol=1e-7)
    assert not at.error


def test_a_side_with_one_metric_leaves_the_others_position(opened, charts, subject):
    at = opened("compare", position="3", compare_run="classes")
    a, b, _ = charts(at)["compare"]
    np.testing.assert_allclose(a, subject().metric(0, 3), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(b, subject("classes", 1).metric(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("part", ["spectra", "angles", "transplant"])
def test_parts(opened, charts, part):
    at = opened("compare", compare_part=part)
    assert set(charts(at)) == {"transplant": {"transplant-0", "transplant-1"}}.get(part, {part})
    assert not at.error


def test_angles_as_asked_for(opened, charts, subject):
    at = opened("compare", compare_part="angles", compare_rank="3", compare_side="key",
                compare_measure="largest")  # fmt: skip
    figure = comparison.angles(subject(), subject(k=1), 3, "key", "largest")
    np.testing.assert_allclose(charts(at)["angles"][0], figure.arrays["values"], rtol=1e-5)


def test_a_transplant_is_drawn_both_ways(opened, charts, subject):
    at = opened("compare", compare_part="transplant")
    one, other = subject(), subject(k=1)
    for k, (first, donor) in enumerate(((one, other), (other, one))):
        pictures = comparison.swap(first, donor).pictures.astype(float)
        change = (pictures[1] - pictures[0]).mean(-1) / 127.5
        np.testing.assert_allclose(charts(at)[f"transplant-{k}"][-1], change, atol=1e-5)


def test_texts(opened):
    at = opened("compare", run="text", compare_part="transplant")
    # "naïve" and "To be,\nor": 6 and 9 bytes; the shorter one's metric does not serve the longer.
    assert [error.value for error in at.error if "at least as long" in error.value]
    assert len(at.get("plotly_chart")) == 1
    assert [caption.value for caption in at.caption if "Continued with" in caption.value]
    at = opened("compare", run="text", compare_kind="text")
    assert any("give the second input" in caption.value for caption in at.caption)
    at.text_input(key="compare_text").set_value(" ").run()
    assert any("blank" in error.value for error in at.error) and not at.exception
    at.text_input(key="compare_text").set_value("To be").run()
    assert not at.error and not at.exception


def test_the_same_thing_twice(opened, heads):
    at = opened("compare", compare_kind="same")
    panel = heads(at)["compare"]["panels"][2]
    assert panel["mark"] == "sentence" and "every value is 0" in panel["text"]
    assert any("same metric" in caption.value for caption in at.caption)
    assert not at.error


def test_runs_of_other_kinds(opened):
    at = opened("compare", compare_run="unshared", compare_layer="1", compare_part="transplant")
    assert not at.error
    at = opened("compare", compare_run="classes", compare_part="transplant")
    assert not at.error and not at.exception
    assert "share no cross-head metric" in opened("compare", run="moa").info[0].value


def test_a_damaged_side_is_a_sentence(opened):
    at = opened("compare", compare_run="sick")
    assert len(at.error) == 1 and not at.exception
