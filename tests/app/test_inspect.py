"""The page Inspect, run by Streamlit's own AppTest: its states, and the numbers in its figures."""

import io
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from damcha import gallery, open_run
from damcha.analysis.inspection import attention_maps

MAIN = Path(__file__).resolve().parents[2] / "app" / "dashboard.py"


def checked(at):
    assert not at.exception, at.exception
    return at


def words(at):
    """All that the page says, as text."""
    kinds = (at.markdown, at.caption, at.info, at.error, at.text)
    return "\n".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")


def same(shown, computed):
    """The app computes in another thread, whose sums may be split otherwise: rounding differs."""
    np.testing.assert_allclose(shown, computed, rtol=1e-5, atol=1e-7)


def png(seed=1, size=(40, 30), colour=True):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (*size, 3) if colour else size, np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def button(at, key):
    return next(group for group in at.get("button_group") if group.key == key)


def upload(at, name, content, mime="image/png"):
    checked(button(at, "image_input").set_value("upload").run())
    return checked(at.file_uploader[0].set_value((name, content, mime)).run())


def test_it_opens_on_a_sample_and_draws_the_librarys_numbers(opened, tiny_runs, charts, heads):
    at = opened()
    subject = gallery.open_subject(
        open_run(tiny_runs / "fashion-damcha"), 10, tiny_runs / "fashion-damcha/samples/bag.png"
    )
    found = charts(at)
    same(found["metric"][0], subject.metric())
    assert set(found) == {"metric", "answer", "blocks"}  # the rest is drawn when it is opened
    said = words(at)
    assert "fashion-damcha, epoch 10, bag.png" in said
    assert "Blocks of one row get the same gradient" in said
    assert at.query_params["run"] == "fashion-damcha" and at.query_params["sample"] == "bag.png"
    low, high = heads(at)["metric"]["scales"][0]["limits"]
    assert high == -low == pytest.approx(np.abs(subject.metric()).max())
    assert not at.error and not at.info


@pytest.mark.parametrize("view", ["symmetric", "antisymmetric", "diagonal", "off_diagonal"])
def test_views_show_parts_of_the_metric(opened, view, charts):
    whole = charts(opened())["metric"][0].astype(np.float64)
    part = charts(opened(view=view))["metric"][0]
    same = np.kron(np.eye(2), np.ones((8, 8)))
    wanted = {
        "symmetric": (whole + whole.T) / 2,
        "antisymmetric": (whole - whole.T) / 2,
        "diagonal": whole * same,
        "off_diagonal": whole * (1 - same),
    }[view]
    np.testing.assert_allclose(part, wanted, atol=1e-6)


def test_difference_head_metrics_and_a_block_by_link(opened, charts):
    whole = charts(opened())["metric"][0]
    difference = charts(opened(view="difference"))["metric"][0]
    np.testing.assert_allclose(difference, whole - 0.25, atol=1e-6)
    parts = charts(opened(view="head_metrics"))["metric"]
    np.testing.assert_allclose(parts[1], whole[8:, :8] + whole[8:, 8:], atol=1e-5)
    block = charts(opened(block="1,0"))["metric"][0]
    same(block, whole[8:, :8])


def test_position_and_epoch_change_the_metric_and_the_link(opened, tiny_runs, charts):
    at = opened()
    run, sample = open_run(tiny_runs / "fashion-damcha"), "samples/bag.png"
    subject = gallery.open_subject(run, 1, tiny_runs / "fashion-damcha" / sample)
    at.select_slider(key="epoch").set_value(1)
    checked(at.select_slider(key="position").set_value(2).run())
    drawn = charts(at)["metric"][0]
    same(drawn, subject.metric(0, 2))
    assert at.query_params["epoch"] == "1" and at.query_params["position"] == "2"
    again = opened(**{name: at.query_params[name] for name in ("run", "epoch", "position")})
    same(charts(again)["metric"][0], drawn)


def test_a_link_to_an_attention_map_opens_it(opened, tiny_runs, charts):
    at = opened(attention="0,1,2")
    run = open_run(tiny_runs / "fashion-damcha")
    subject = gallery.open_subject(run, 10, tiny_runs / "fashion-damcha/samples/bag.png")
    found = charts(at)
    assert {"attention", "attention-over-input"} <= set(found)
    whole = attention_maps(run.load(10), subject.example, 0)[1]
    drawn = gallery.attention(subject, 0, 0, whole[None]).panels[0].mark.values
    same(found["attention"][0], drawn)
    assert at.query_params["attention"] == "0,1,2" and not at.info


def test_an_mha_run_has_attention_and_an_answer_but_no_metric(opened, charts):
    at = opened(run="moa")
    assert "its heads share no cross-head metric" in at.info[0].value
    assert set(charts(at)) == {"attention", "attention-over-input", "answer"}


def test_a_sentence_is_read_as_bytes(opened, tiny_runs, charts):
    at = opened(run="text", text="né 1")
    subject = gallery.open_subject(open_run(tiny_runs / "text"), 10, "né 1")
    same(charts(at)["metric"][0], subject.metric(0, -1))
    surprise = charts(at)["surprise"][0].ravel()
    np.testing.assert_allclose(surprise, subject.inspection.answer.nats, rtol=1e-5)
    assert "4 characters make 5 bytes" in words(at)
    assert at.query_params["text"] == "né 1"
    checked(at.text_area[0].set_value("   ").run())
    assert "blank" in at.error[0].value
    assert "epoch 10, text" in words(at), "the last result stays"
    checked(at.text_area[0].set_value("abc " * 99).run())
    assert "Cut to the first 10 of 396 bytes" in words(at) and not at.error


def test_a_classifier_shows_its_classes_and_one_metric(opened, tiny_runs, heads):
    at = opened(run="classes")
    run = open_run(tiny_runs / "classes")
    subject = gallery.open_subject(run, 10, tiny_runs / "classes/samples/bag.png")
    bars = heads(at)["answer"]["panels"][0]
    np.testing.assert_allclose(
        bars["values"], -np.sort(-subject.inspection.answer.probabilities), rtol=1e-5
    )
    assert "<b>boot</b>" in bars["labels"], "drawn as text: a canvas knows no HTML"
    assert not [slider for slider in at.select_slider if slider.key == "position"]


def test_a_run_with_one_metric_a_layer_and_one_epoch(opened, tiny_runs, charts):
    at = opened(run="unshared", layer="1")
    run = open_run(tiny_runs / "unshared")
    subject = gallery.open_subject(run, 3, tiny_runs / "unshared/samples/bag.png")
    same(charts(at)["metric"][0], subject.metric(1, -1))
    assert "Epoch **3**, the only one of this run" in words(at)
    assert "Blocks of one row" not in words(opened(run="bilinear")), "there they can be told apart"


def test_an_upload_is_shown_with_what_was_done_to_it(opened, tiny_runs, charts):
    content = png()
    at = upload(opened(), "photo.png", content)
    subject = gallery.open_subject(open_run(tiny_runs / "fashion-damcha"), 10, content)
    same(charts(at)["metric"][0], subject.metric())
    assert "Colour converted to grey" in words(at) and "Cropped to the central" in words(at)
    assert "sample" not in at.query_params, "an upload is in no link"
    checked(at.checkbox(key="invert").set_value(True).run())
    assert "Inverted" in words(at)
    checked(at.file_uploader[0].set_value(None).run())
    assert "photo.png" in words(at), "while a file is replaced, the last one stays"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.png", b"", "empty"),
        ("drawing.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG drawing"),
        ("cut.png", png()[:900], "truncated or damaged"),
        ("![](http://example.org/a.png).png", b"MZ\0\0", "not a picture"),
    ],
)
def test_a_bad_upload_is_one_sentence_and_one_line(opened, caplog, name, content, sentence, charts):
    at = opened()
    before = charts(at)["metric"]
    with caplog.at_level(logging.WARNING, "damcha.app"):
        at = upload(at, name, content)
    assert len(at.error) == 1 and sentence in at.error[0].value.replace("\\", "")
    assert "![" not in at.error[0].value, "a name is no Markdown"
    logged = [record for record in caplog.records if record.name == "damcha.app"]
    assert len(logged) == 1 and "\n" not in logged[0].getMessage()
    assert np.array_equal(charts(at)["metric"], before), "the last result stays"
    checked(button(at, "image_input").set_value("sample").run())
    assert not at.error


def test_damaged_runs_are_named_and_hide_nothing(opened):
    at = opened(run="sick", epoch="10")
    assert "Epoch 10 has non-finite weights" in at.error[0].value.replace("\\", "")
    assert "sick, epoch 1, bag.png" in words(at), "never an empty page"
    assert "no-config" in words(at) and "it has no config.json" in words(at)
    checked(at.select_slider(key="epoch").set_value(1).run())
    assert not at.error
    checked(at.select_slider(key="epoch").set_value(10).run())
    assert at.error and "sick, epoch 1, bag.png" in words(at), "the last result stays"


def test_a_link_of_garbage_gives_defaults_and_a_sentence(opened):
    at = opened(run="<b>no", epoch="x", view="zzz", position="99", block="9,9", attention="a",
                layer="-7", sample="../../etc/passwd", frame="1e9", device="tpu")  # fmt: skip
    said = at.info[0].value.replace("\\", "")
    assert len(at.info) == 1
    assert "epoch, layer, frame, block" not in said
    for piece in ("epoch", "run “<b>no”", "view “zzz”", "position “99”", "device “tpu”"):
        assert piece in said
    assert "fashion-damcha, epoch 10, bag.png" in words(at)
    checked(at.select_slider(key="epoch").set_value(1).run())
    assert not at.info, "the sentence goes with the first change"


def test_what_was_chosen_survives_a_change_of_run(opened):
    at = opened(view="symmetric")
    checked(at.select_slider(key="position").set_value(1).run())
    checked(at.selectbox(key="run").set_value("moa").run())
    checked(at.selectbox(key="run").set_value("fashion-damcha").run())
    assert button(at, "view").value == "symmetric"
    assert at.select_slider(key="position").value == 1
    assert at.query_params["view"] == "symmetric"


def test_two_sessions_do_not_see_each_other(opened):
    one, two = opened(), opened(run="text", text="secret")
    upload(one, "mine.png", png(5))
    checked(two.run())
    assert "mine.png" not in words(two) and "text, epoch 10, text" in words(two)
    assert "secret" not in words(one) and "mine.png" in words(one)


def test_without_runs_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("DAMCHA_RUNS", str(tmp_path))
    at = checked(AppTest.from_file(str(MAIN), default_timeout=60).run())
    assert "damcha train fashion" in at.error[0].value


def test_exports_are_the_figure(tiny_runs):
    from app import widgets

    run = tiny_runs / "fashion-damcha"
    figure = gallery.metric(gallery.open_subject(open_run(run), 10, run / "samples/bag.png"))
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG", "npz": b"PK", "csv": b"panel,"}
    for format_, start in starts.items():
        assert widgets.export(figure, format_).startswith(start)
    made = json.loads(widgets.export(figure, "json"))["provenance"]
    assert made["epoch"] == 10 and "damcha figure metric" in made["command"]
    with np.load(io.BytesIO(widgets.export(figure, "npz"))) as arrays:
        same(arrays["metric"], figure.arrays["metric"])


def test_every_page_opens(opened):
    at = opened()
    for page in (MAIN.parent / "views").glob("*.py"):
        checked(at.switch_page(f"views/{page.name}").run())


def test_a_source_may_come_with_its_target(opened, tiny_runs):
    at = opened(run="pairs", text="ab", target="cd")
    assert not at.error, [error.value for error in at.error]
    run = open_run(tiny_runs / "pairs")
    assert at.text_area(key="text").label == "Source"
    notes = " ".join(caption.value for caption in at.caption)
    assert "The target that the model writes" in notes and "stands for it" not in notes
    at.text_input(key="target").set_value("").run()
    notes = " ".join(caption.value for caption in at.caption)
    assert "No target was given" in notes
    assert "target" not in at.query_params
    written = gallery.open_subject(run, None, "ab", device="cpu").inspection.answer.continuation
    assert any(code.value == (written or " ") for code in at.code)
