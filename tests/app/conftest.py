"""What the tests of pages share: the app on tiny runs, and the numbers in its figures."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from damcha.figures.canvas import from_canvas

MAIN = Path(__file__).resolve().parents[2] / "app" / "dashboard.py"


def _checked(at):
    assert not at.exception, at.exception
    return at


@pytest.fixture
def opened(tiny_runs, monkeypatch, tmp_path):
    """``opened(page="inspect", **query)``: a page on the tiny runs, opened by a link."""
    monkeypatch.setenv("DAMCHA_RUNS", str(tiny_runs))
    monkeypatch.setenv("DAMCHA_BOARDS", str(tmp_path / "boards"))

    def run(page="inspect", **query):
        at = AppTest.from_file(str(MAIN), default_timeout=60)
        for name, value in query.items():
            at.query_params[name] = value
        if page != "inspect":
            at.switch_page(f"views/{page}.py")
        return _checked(at.run())

    return run


@pytest.fixture
def charts():
    """``charts(at)``: the drawn figures by key, each a list of its panels' matrices (canvas) or a
    plotly specification (a dict)."""

    def read(at):
        found = {chart.key: json.loads(chart.proto.spec) for chart in at.get("plotly_chart")}
        for element in at.get("bidi_component"):
            if element.proto.component_name.endswith("damcha_figure"):
                _, values = from_canvas(element.proto.bytes)
                found[element.key] = [frames[-1] if frames else None for frames in values]
        return found

    return read


@pytest.fixture
def heads():
    """``heads(at)``: all that a canvas says besides its numbers, by the figure's key."""

    def read(at):
        return {
            element.key: from_canvas(element.proto.bytes)[0]
            for element in at.get("bidi_component")
            if element.proto.component_name.endswith("damcha_figure")
        }

    return read


@pytest.fixture
def numbers():
    """``numbers(trace, axis="z")``: an array of a plotly trace, as it goes over the wire."""

    def read(trace, axis="z"):
        sent = trace[axis]
        if not isinstance(sent, dict):
            return np.array(sent)
        flat = np.frombuffer(base64.b64decode(sent["bdata"]), np.dtype(sent["dtype"]))
        return flat.reshape([int(n) for n in str(sent.get("shape", len(flat))).split(",")])

    return read
