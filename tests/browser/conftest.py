"""A real server and a real browser that may speak to nobody else."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

# The matrix that a chart shows, once it is drawn; null before.
DRAWN = """(key) => {
  for (const part of document.querySelectorAll(`[class*="st-key-${key}"] *`)) {
    const view = part.shadowRoot?.querySelector(".figure")?.view;
    const panel = view?.head?.panels.find((panel) => panel.mark === "cells");
    if (!view?.drawn || !panel) continue;
    const values = view.values(panel);
    return Array.from({ length: panel.rows }, (_, r) =>
      Array.from(values.subarray(r * panel.columns, (r + 1) * panel.columns)));
  }
  return null;
}"""


@contextlib.contextmanager
def serve(script, runs=None):
    """Run a Streamlit script on a free port; yield its address. Output goes to a file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {**os.environ, **({"DAMCHA_RUNS": str(runs)} if runs else {})}
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.port", str(port)]
    # A pipe that nobody reads would fill up.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryDirectory() as boards:
        variables["DAMCHA_BOARDS"] = boards
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT
        )
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    if urllib.request.urlopen(f"{address}/_stcore/health", timeout=5).read():
                        break
                if process.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                raise RuntimeError("the server does not answer")
            if process.poll() is not None:
                output.seek(0)
                raise RuntimeError(output.read())
            yield address
        finally:
            process.terminate()
            process.wait(20)


def launch(playwright):
    """Start Chromium, as this machine has it."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def server(tiny_runs):
    """The address of the dashboard on the tiny runs."""
    with serve(ROOT / "app" / "main.py", tiny_runs) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}; set CHROMIUM to a Chromium or Chrome")
    with sync_api.sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, server):
    """``visit(query="", **context)``: open the app in a new browser profile, wait for its metric.

    At the end, no page may have asked another host for anything, nor reported an error.
    """
    contexts, wrong = [], []

    def local(route):
        if route.request.url.startswith((server, "data:", "blob:")):
            route.continue_()
        else:
            wrong.append(f"outside host: {route.request.url}")
            route.abort()

    def open_page(query="", chart="metric", **options):
        options = {"viewport": {"width": 1400, "height": 1000}} | options
        context = browser.new_context(**options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        context.route("**/*", local)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        page.on("console", lambda m: m.type == "error" and wrong.append(f"console: {m.text}"))
        page.goto(server + query)
        page.wait_for_function(DRAWN, arg=chart)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.fixture
def wait_for():
    """``wait_for(page, matrix, chart="metric")``: wait until a chart shows this matrix.

    The app computes in a thread of its own, whose sums may be split otherwise: rounding differs.
    """

    def wait(page, matrix, chart="metric"):
        wanted = np.asarray(matrix, np.float32).astype(float).tolist()
        page.wait_for_function(
            f"""([key, wanted]) => {{
              const shown = ({DRAWN})(key);
              return shown?.length === wanted.length && shown.every((row, i) =>
                row.length === wanted[i].length && row.every((value, j) =>
                  Math.abs(value - wanted[i][j]) <= 1e-7 + 1e-5 * Math.abs(wanted[i][j])));
            }}""",
            arg=[chart, wanted],
        )

    return wait
