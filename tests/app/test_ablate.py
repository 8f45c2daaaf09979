import os
from pathlib import Path

import numpy as np
import pytest

from damcha import gallery, open_run
from damcha.analysis import evaluation


@pytest.fixture
def subject(tiny_runs):
    run = open_run(tiny_runs / "fashion-damcha")
    return gallery.open_subject(run, 10, run.samples[0], device="cpu")


def test_output_beside_output(opened, heads, subject):
    at = opened("ablate")
    found = gallery.ablation.ablate(subject, gallery.ablation.USUAL)
    titles = [panel["title"] for panel in heads(at)["ablation"]["panels"][:7]]
    assert [title.rpartition(": ")[0] for title in titles] == list(found.names)
    losses = [float(title.rpartition(": ")[2]) for title in titles]
    np.testing.assert_allclose(losses, found.loss, rtol=1e-3)
    assert not at.error


def test_block_by_block_and_rank(opened, charts, subject):
    shown = charts(opened("ablate", ablate_part="blocks"))["knock-out"]
    wanted = gallery.ablation.knock_out(subject).arrays
    np.testing.assert_allclose(shown[0], wanted["blocks"], atol=1e-6)
    np.testing.assert_allclose(shown[1], wanted["heads"], atol=1e-6)
    assert "rank" in charts(opened("ablate", ablate_part="rank"))


def test_an_edit_by_hand_joins_the_others(opened, heads):
    at = opened("ablate")
    next(button for button in at.button if button.label == "Add").click()
    at.run()
    assert not at.exception
    titles = [panel["title"] for panel in heads(at)["ablation"]["panels"]]
    assert any(title.startswith("Edited by hand") for title in titles)


def test_held_out_inputs_need_data_and_say_so(opened):
    at = opened("ablate", ablate_part="set")
    assert "has no held-out data" in at.error[0].value.replace("\\", "")


@pytest.mark.parametrize("run", ["text", "classes", "unshared", "bilinear"])
def test_other_runs(opened, run):
    at = opened("ablate", run=run)
    assert not at.error


def test_without_a_metric(opened):
    assert "share no cross-head metric" in opened("ablate", run="moa").info[0].value


def test_pairs_are_evaluated_as_pairs(opened, tiny_runs, monkeypatch):
    shipped = Path(__file__).resolve().parents[2] / "checkpoints"
    at = opened("ablate", run="pairs", ablate_part="set", text="ab", target="cd")
    monkeypatch.setenv("DAMCHA_RUNS", f"{tiny_runs}{os.pathsep}{shipped}")
    at.run()
    assert any("512 inputs of concepts, test: 512 of" in said(one) for one in at.caption)
    next(button for button in at.button if button.label == "Evaluate").click()
    at.run()
    assert not at.exception and not at.error
    run = open_run(tiny_runs / "pairs")
    data = run.evaluation_set(shipped / "data" / "concepts", 512)
    *_, scores = evaluation.scores(run.load(device="cpu"), data)
    (row,) = (
        line
        for one in at.markdown
        for line in one.value.splitlines()
        if line.startswith("| Full |")
    )
    assert f"{scores['nll'].mean():.4f}" in row


def said(element):
    return element.value.replace("\\", "")
