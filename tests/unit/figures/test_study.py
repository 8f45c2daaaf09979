import dataclasses
import json

import numpy as np
import pytest

from damcha.analysis.study import Trained, estimate, read_trained, study
from damcha.errors import InputError
from damcha.figures.paper import save
from damcha.figures.study import study_figure
from damcha.presets import PRESETS


def run(variant, seed=0, losses=(3.0, 2.0, 1.0), **settings):
    config = PRESETS["text"].override({"seed": seed, "n_layers": 1, "d_ff": 8, **settings})
    return Trained(variant, config, dict(zip((40, 80, 120), losses, strict=True)))


@pytest.fixture(scope="module")
def found():
    runs = [
        run("paper"),
        run("paper", 1, (3.2, 2.4, 1.0)),
        run("mha", 0, (2.9, 1.8, 1.0), attention="mha"),
        run("mha", 1, (3.0, 2.0, 1.0), attention="mha"),
        run("slow", 1, (3.0, 2.1, 1.0), generator_lr=0.5),
    ]
    return study(runs, 80, ("paper", "mha"))


def test_an_estimate_is_student_s():
    low, mean, high = estimate([1.0, 2.0, 3.0])
    assert mean == 2 and low == pytest.approx(2 - 4.302653 / 3**0.5)
    assert high - mean == pytest.approx(mean - low)
    assert np.isnan(estimate([5.0])[0]) and estimate([5.0])[1] == 5


def test_variants_are_compared_at_the_step_by_seed(found):
    paper, mha, slow = found.variants
    assert (found.step, found.schedule) == (80, 2000)
    assert paper.settings == {} and mha.settings == {"attention": "mha"}
    assert slow.settings == {"generator_lr": 0.5}
    assert mha.seeds == (0, 1) and slow.seeds == (1,)
    assert mha.steps == (40, 80) and mha.curves == ((2.9, 1.8), (3.0, 2.0))
    assert mha.differences["paper"] == pytest.approx(estimate([-0.2, -0.4]))
    assert slow.differences["paper"][1] == pytest.approx(2.1 - 2.4)
    assert slow.differences["mha"][1] == pytest.approx(0.1)
    assert set(paper.differences) == {"mha"}
    assert json.loads(json.dumps(dataclasses.asdict(found)))["step"] == 80


def test_the_figure_has_the_best_first_and_dots_for_single_seeds(found, tmp_path):
    figure = study_figure(found)
    dots, lines = (panel.mark for panel in figure.panels)
    assert [label.split(",")[0] for label in dots.labels] == ["mha", "slow", "paper"]
    assert dots.centres == pytest.approx([1.9, 2.1, 2.2])
    assert dots.lows[1] == dots.highs[1] == 2.1 and dots.lows[0] < 1.9 < dots.highs[0]
    assert lines.series[0].y == pytest.approx([2.95, 1.9])
    assert list(lines.series[0].high) == [3.0, 2.0]
    assert "80 steps of a schedule of 2000, 1 or 2 seeds" in figure.caption
    save(figure, tmp_path / "study.pdf")
    assert (tmp_path / "study.pdf").read_bytes().startswith(b"%PDF")


def test_a_folder_is_read_as_far_as_it_went(tmp_path):
    config = PRESETS["text"]
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "metrics.jsonl").write_text('{"step": 40, "valid_loss": 2.5}\n')
    one = read_trained("paper", tmp_path)
    assert one.config == config and one.losses == {40: 2.5}


@pytest.mark.parametrize(
    ("other", "step", "message"),
    [
        (run("x"), 60, "step: a run of 'x' has no validation loss at step 60"),
        (run("x", lr=1e-4), 80, "runs: 'x' had other data or another budget than 'x'|'paper'"),
        (run("x", seq_len=64), 80, "runs: 'x' had other data"),
    ],
)
def test_runs_that_cannot_be_compared(other, step, message):
    runs = [run("x") if step == 60 else run("paper"), other]
    with pytest.raises(InputError, match=message):
        study(runs, step, ())
    with pytest.raises(InputError, match="nothing to compare"):
        study([], step, ())
