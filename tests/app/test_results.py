import io
import json

import pytest
from PIL import Image

COLUMNS = ["System", "MSE", "Difference [95 %]", "Paper"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """``results(name, **facts)``: a folder with results, which the page then lists."""
    monkeypatch.setenv("DAMCHA_RESULTS", str(tmp_path))

    def make(name, **facts):
        folder = tmp_path / name
        folder.mkdir()
        table = {"columns": COLUMNS, "rows": [["DAMCHA", 0.06284, [0.0, -0.5, 0.5], "–"]],
                 "caption": "![x](http://example.org/x.png)", "digits": 4}  # fmt: skip
        (folder / "results.json").write_text(json.dumps({
            "format": "damcha-reproduction", "format_version": 1, "name": name, "title": "a table",
            "small": True, "date": "2026-01-01", "command": f"damcha reproduce {name}",
            "table": table, "figures": [], **facts,
        }))  # fmt: skip
        (folder / "table.tex").write_text("\\toprule")
        (folder / "README.md").write_text("# The card\n")
        return folder

    return make


def test_the_empty_page_says_what_to_do(opened, results):
    at = opened("results")
    assert any("damcha reproduce table4 --small" in one.value for one in at.caption)


def test_a_table_its_card_and_files(opened, results):
    results("table1")
    at = opened("results")
    assert not at.error
    shown = at.dataframe[0].value
    assert list(shown.columns) == COLUMNS
    assert list(shown.iloc[0]) == ["DAMCHA", "0.0628", "0.0000 [-0.5000, 0.5000]", "–"]
    assert any(one.value.startswith("# The card") for one in at.code)
    names = [button.proto.label for button in at.get("download_button")]
    assert names == ["table.tex", "results.json"]
    # a caption in somebody's results cannot make the browser fetch a picture
    (caption,) = [one.value for one in at.caption if "example" in one.value]
    assert "![x](" not in caption and r"\[" in caption


def test_a_figure_and_a_choice(opened, results):
    results("table1")
    folder = results("figure8", figures=["figure8"], table=None)
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3)).save(buffer, "PNG")
    (folder / "figure8.png").write_bytes(buffer.getvalue())
    at = opened("results")
    assert at.selectbox(key="result").options == ["table1: a table", "figure8: a table"]
    at.selectbox(key="result").set_value(1)
    at.run()
    assert not at.exception and not at.error and len(at.get("image")) == 1
    assert not at.dataframe
    assert "figure8.png" in [button.proto.label for button in at.get("download_button")]


def test_damaged_results_are_a_sentence(opened, results):
    results("table1")
    (results("table3") / "results.json").write_text("{")
    at = opened("results")
    assert any("table3" in one.value and "reproduce it again" in one.value for one in at.caption)
    assert len(at.dataframe) == 1


def test_a_missing_picture_is_a_sentence(opened, results):
    results("figure8", figures=["figure8"], table=None)
    at = opened("results")
    assert any(r"figure8\.png is missing" in one.value for one in at.error)
