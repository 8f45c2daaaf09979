"""What only a browser can show: that figures are drawn, and that people can act on them."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from damcha import gallery, open_run

# The middle of a cell of a chart's first panel, in pixels from the canvas's top left.
CENTRE = """([key, row, column]) => {
  for (const part of document.querySelectorAll(`[class*="st-key-${key}"] *`)) {
    const view = part.shadowRoot?.querySelector(".figure")?.view;
    if (!view) continue;
    const { rows, columns } = view.head.panels[0], box = view.plan.boxes[0];
    return { x: box.x + ((column + 0.5) / columns) * box.width,
             y: box.y + ((row + 0.5) / rows) * box.height };
  }
}"""


@pytest.fixture
def metric_of(tiny_runs):
    """``metric_of(source, run=…, position=…)``: what the library says the metric is."""

    def find(source=None, run="fashion-damcha", position=-1):
        opened = open_run(tiny_runs / run)
        source = opened.samples[0] if source is None else source
        return gallery.open_subject(opened, None, source).metric(0, position)

    return find


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_first_page_draws_the_metric_of_a_sample(visit, metric_of, wait_for):
    page = visit()
    wait_for(page, metric_of())
    assert page.get_by_text("Traceback").count() == 0


def test_an_upload_is_drawn(visit, metric_of, wait_for):
    page = visit()
    page.get_by_role("radio", name="Upload").click()
    page.locator("input[type=file]").set_input_files(
        {"name": "mine.png", "mimeType": "image/png", "buffer": picture(1)}
    )
    wait_for(page, metric_of(picture(1)))
    page.locator("input[type=file]").set_input_files(
        {"name": "bad.png", "mimeType": "image/png", "buffer": b"not a picture"}
    )
    page.get_by_text("text, not a picture").wait_for()
    wait_for(page, metric_of(picture(1)))


def test_a_picture_can_be_pasted(visit, metric_of, wait_for):
    page = visit()
    page.get_by_role("radio", name="Upload").click()
    page.get_by_role("button", name="Paste a picture").wait_for()
    page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "x.png", { type: "image/png" }));
          document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
        }""",
        list(picture(2)),
    )
    wait_for(page, metric_of(picture(2)))


def test_the_slider_and_the_gallery_obey_the_keyboard(visit, metric_of, tiny_runs, wait_for):
    page = visit()
    slider = page.get_by_role("slider", name="Position")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    wait_for(page, metric_of(position=-2))
    page.get_by_role("radio", name="bag").focus()
    page.keyboard.press("ArrowRight")
    wait_for(page, metric_of(tiny_runs / "fashion-damcha/samples/boot.png", position=-2))
    page.wait_for_url("**sample=boot.png**")


def test_a_click_on_a_block_opens_it(visit, metric_of, wait_for):
    page = visit()
    whole = metric_of()
    wait_for(page, np.sqrt((whole.reshape(2, 8, 2, 8) ** 2).sum((1, 3))), "blocks")
    cell = page.evaluate(CENTRE, ["blocks", 1, 0])
    page.locator('[class*="st-key-blocks"] canvas').click(position=cell)
    wait_for(page, whole[8:, :8])
    page.wait_for_url("**block=1%2C0**")


def test_downloads_are_the_figure(visit, metric_of):
    page = visit()
    panel = page.get_by_role("button", name="Export").first
    panel.click()
    starts = {"PDF": b"%PDF", "NPZ": b"PK", "JSON": b"{"}
    for name, start in starts.items():
        with page.expect_download() as found:
            page.get_by_role("button", name=name, exact=True).click()
        content = found.value.path().read_bytes()
        assert content.startswith(start)
        assert found.value.suggested_filename == f"metric-full.{name.lower()}"
        if name == "NPZ":
            with np.load(io.BytesIO(content)) as arrays:
                np.testing.assert_allclose(arrays["metric"], metric_of(), rtol=1e-5, atol=1e-7)
    assert json.loads(content)["provenance"]["run"] == "fashion-damcha"


def test_a_sentence_is_typed_and_its_link_opens_it_again(visit, metric_of, wait_for):
    page = visit("?run=text")
    page.get_by_role("radio", name="Write").click()
    page.get_by_role("textbox", name="Text").fill("Ahoy <b>")
    page.keyboard.press("Control+Enter")
    wait_for(page, metric_of("Ahoy <b>", "text"))
    page.wait_for_url("**text=Ahoy**")
    again = visit("?" + page.url.partition("?")[2], color_scheme="dark")
    wait_for(again, metric_of("Ahoy <b>", "text"))
    background = again.evaluate(
        "getComputedStyle(document.querySelector('.stApp')).backgroundColor"
    )
    assert background == "rgb(20, 23, 27)"


def test_two_people_at_once(visit, metric_of, wait_for):
    one, two = visit(), visit()
    for page, seed in ((one, 3), (two, 4)):
        page.get_by_role("radio", name="Upload").click()
        page.locator("input[type=file]").set_input_files(
            {"name": f"{seed}.png", "mimeType": "image/png", "buffer": picture(seed)}
        )
    wait_for(one, metric_of(picture(3)))
    wait_for(two, metric_of(picture(4)))
    assert one.get_by_text("4.png").count() == 0
