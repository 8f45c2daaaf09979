"""Measure how fast the dashboard is, in headless Chromium: python tests/browser/speed.py [RUNS]

RUNS is a folder of runs (by default the app's own). Each time runs until the drawn picture of the
figure is in the page. Figures of a machine that does other work say little.
"""

import io
import os
import statistics
import sys
import time

import numpy as np
from conftest import DRAWN, ROOT, launch, serve
from PIL import Image
from playwright.sync_api import sync_playwright

N = 20

# A promise of the milliseconds until the metric differs from what it is now and is drawn.
WATCH = f"""() => {{
  const sign = () => {{
    const rows = ({DRAWN})("metric");
    return rows && rows.reduce((sum, row, i) =>
      sum + row.reduce((part, value, j) => part + value * (1 + i * 0.37 + j * 0.011), 0),
      rows.length * 1e6);
  }};
  const before = sign(), start = performance.now();
  window.waited = new Promise((resolve) => {{
    const poll = () => {{
      const now = sign();
      if (now !== null && now !== before) resolve(performance.now() - start);
      else requestAnimationFrame(poll);
    }};
    poll();
  }});
}}"""
SHOWN = """(key) => {
  const parts = [...document.querySelectorAll(`[class*="st-key-${key}"] *`)];
  return parts.some((part) => part.shadowRoot?.querySelector(".figure")?.view?.drawn
    || (part.matches(".js-plotly-plot") && part.querySelector(".plot, .gl-container")));
}"""
FIRST = f"() => ({DRAWN})('metric') !== null"


class Tally:
    """Bytes that came over a page's websocket."""

    def __init__(self, page):
        self.received = 0
        page.on("websocket", lambda ws: ws.on("framereceived", self._count))

    def _count(self, payload):
        self.received += len(payload)


def timed(page, act):
    """Seconds from an action to a new metric on the screen."""
    page.evaluate(WATCH)
    act()
    return page.evaluate("window.waited") / 1000


def say(what, seconds, target):
    seconds = sorted(seconds)
    high = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    spread = f", 95th percentile {high:.2f} s" if len(seconds) > 1 else ""
    print(
        f"{what:44} {statistics.median(seconds):6.2f} s{spread:28} (wanted: {target})", flush=True
    )


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (480, 640, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return {"name": f"{seed}.jpg", "mimeType": "image/jpeg", "buffer": buffer.getvalue()}


def opened(chromium, address, query=""):
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    tally = Tally(page)
    start = time.perf_counter()
    page.goto(address + query)
    page.wait_for_function(FIRST, timeout=120_000, polling=20)
    return page, tally, time.perf_counter() - start


def dashboard(chromium, runs):
    start = time.perf_counter()
    with serve(ROOT / "app" / "main.py", runs) as address:
        ready = time.perf_counter() - start
        page, _, _ = opened(chromium, address)
        total = time.perf_counter() - start
        say("first figure after process start", [total], "4 s")
        print(f"{'  of that, until the server answers':44} {ready:6.2f} s", flush=True)
        page.wait_for_timeout(4000)
        further = [opened(chromium, address) for _ in range(5)]
        say("first figure in a further browser", [seconds for *_, seconds in further], "2 s")
        for other, *_ in further:
            other.context.close()

        views = ["R", "M", "Sym.", "M"] * (N // 4)
        times = [
            timed(page, page.get_by_role("radio", name=view, exact=True).click) for view in views
        ]
        say("another view", times, "0.5 s")
        slider = page.get_by_role("slider", name="Epoch")
        slider.focus()
        keys = (["ArrowLeft"] * 2 + ["ArrowRight"] * 2) * (N // 4)
        times = [timed(page, lambda key=key: page.keyboard.press(key)) for key in keys]
        say("another epoch", times, "0.5 s")
        switch(page)
        page.get_by_role("radio", name="Upload").click()
        files = page.locator("input[type=file]")
        files.wait_for(state="attached")
        page.wait_for_timeout(500)
        times = [
            timed(page, lambda seed=seed: files.set_input_files(picture(seed))) for seed in range(N)
        ]
        say("an upload, until its metric is drawn", times, "0.6 s, 95 %: 1.0 s")


PAGES = {
    "Epochs": "epochs", "Contributions": "contributions", "Ablate": "ablation",
    "Compare": "compare", "Runs": "curves", "Inspect": "metric",
}  # fmt: skip
"""Page → the key of its first figure."""


def switch(page):
    """Time from a click on a page's name to its first figure, the second time each is opened."""
    for k in range(2):
        for name, key in PAGES.items():
            start = time.perf_counter()
            page.get_by_role("link", name=name).click()
            page.wait_for_function(SHOWN, arg=key, timeout=60_000, polling=20)
            took = time.perf_counter() - start
            page.wait_for_timeout(700)
            say(f"page {name}" + (", first time" if k == 0 else ""), [took], "1 s")


def large(chromium):
    with serve(ROOT / "tests" / "browser" / "large.py") as address:
        page, tally, _ = opened(chromium, address)
        page.wait_for_timeout(1000)

        def choose(name):
            before = tally.received
            seconds = timed(page, page.get_by_role("radio", name=name, exact=True).click)
            page.wait_for_timeout(300)
            return seconds, (tally.received - before) / 1e6

        for width in ("1024", "2048"):
            steps = {width: [], "block": [], "whole": [], "64": []}
            for _ in range(5):
                for name, results in steps.items():
                    results.append(choose(name))
            for name, what in ((width, "overview"), ("block", "one block")):
                seconds, sent = zip(*steps[name], strict=True)
                say(f"d = {width}, {what}, {max(sent):.2f} MB sent", seconds, "0.5 s, 1 MB")


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        browser.new_page().goto("about:blank")  # starting the browser itself is not measured
        dashboard(browser, sys.argv[1] if len(sys.argv) > 1 else None)
        large(browser)
        browser.close()
