"""What a person with a photo does first: see it, ask how, whether and where, take the figures."""

import io
import time
import zipfile

import numpy as np
import pytest
from PIL import Image

from damcha import gallery, open_run


@pytest.fixture
def photo():
    pixels = np.random.default_rng(9).integers(0, 256, (60, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def collect(page):
    """Put the page's first figure on the board."""
    page.get_by_role("button", name="Export").first.click()
    page.get_by_role("button", name="Add to the figure board").click()
    page.get_by_text("On the board:").wait_for()
    page.keyboard.press("Escape")


def test_from_a_photo_to_three_figures(visit, wait_for, tiny_runs, photo):
    run = open_run(tiny_runs / "fashion-damcha")
    example = run.prepare(photo, name="photo.png")
    subject = gallery.open_subject(run, None, example, device="cpu")
    began = time.monotonic()
    page = visit()
    page.get_by_role("radio", name="Upload").click()
    page.locator("input[type=file]").set_input_files(
        {"name": "photo.png", "mimeType": "image/png", "buffer": photo}
    )
    wait_for(page, subject.metric())

    page.get_by_role("link", name="Epochs").click()  # how did it get there?
    page.get_by_text("photo.png over the epochs").wait_for()
    page.get_by_role("radio", name="Cells").click()
    first = gallery.open_subject(run, run.epochs[0], example, device="cpu")
    wait_for(page, first.metric(), "epochs")
    collect(page)

    page.get_by_role("link", name="Ablate").click()  # does it matter?
    page.get_by_text("What the answer rests on").wait_for()
    page.locator('[class*="st-key-ablation"] canvas').first.wait_for()
    collect(page)

    page.get_by_role("link", name="Contributions").click()  # which part carries it?
    page.get_by_text("Which part carries the answer").wait_for()
    wanted = gallery.contributions.figure(subject).panels[0].mark.values
    wait_for(page, wanted, "contributions")
    collect(page)

    page.get_by_role("link", name="Figure board").click()
    page.get_by_role("button", name="Write the ZIP").click()
    with page.expect_download() as found:
        page.get_by_role("button", name="Download figures.zip").click()
    with zipfile.ZipFile(found.value.path()) as archive:
        names = archive.namelist()
        pdfs = [name for name in names if name.endswith(".pdf")]
        assert [name[8:] for name in pdfs] == [
            "01-epochs-full.pdf", "02-ablation.pdf", "03-contributions-blocks.pdf",
        ]  # fmt: skip
        assert archive.read("inputs/photo.png") == photo
    assert time.monotonic() - began < 120, "the whole way takes less than two minutes"
    assert page.get_by_text("cannot be shown because of a fault").count() == 0


def test_pages_keep_run_input_and_epoch(visit, wait_for, tiny_runs):
    page = visit("?run=fashion-damcha&epoch=1&sample=boot.png")
    for name in ("Epochs", "Ablate", "Compare", "Runs", "Inspect"):
        page.get_by_role("link", name=name).click()
        page.wait_for_url("**epoch=1**")
    run = open_run(tiny_runs / "fashion-damcha")
    subject = gallery.open_subject(run, 1, run.samples[1], device="cpu")
    wait_for(page, subject.metric())


def test_zoom_and_frame_stay(visit, tiny_runs):
    page = visit("?epochs_form=animation&epochs_runs=fashion-damcha", chart="metric")
    page.get_by_role("link", name="Epochs").click()
    slider = page.get_by_role("slider", name="Frame")
    slider.wait_for()
    slider.focus()
    page.keyboard.press("End")
    page.get_by_text("epoch 10", exact=True).wait_for()
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
