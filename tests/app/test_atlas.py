from pathlib import Path

import pytest

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints"


def test_without_data_it_says_so(opened):
    at = opened("atlas")
    assert "has no held-out data" in at.error[0].value.replace("\\", "")
    assert "share no cross-head metric" in opened("atlas", run="mha").info[0].value


@pytest.fixture
def shipped(opened, monkeypatch):
    def run(**query):
        at = opened("atlas", **query)
        next(button for button in at.button if button.label.startswith("Survey")).click()
        at.run()
        assert not at.exception
        return at

    monkeypatch.setenv("DAMCHA_RUNS", str(SHIPPED))
    return run


def test_a_survey_of_shipped_data(shipped, charts, monkeypatch):
    at = shipped(run="fashion-damcha")
    assert "atlas" in charts(at) and not at.error
    assert any("Adaptivity" in mark.value for mark in at.markdown)


def test_a_static_run_gives_a_sentence(shipped):
    at = shipped(run="fashion-static")
    assert any("Every input has the same metric" in info.value for info in at.info)
