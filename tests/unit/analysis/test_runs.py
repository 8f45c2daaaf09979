import json

import pytest

from damcha import open_run
from damcha.analysis.runs import cost, differences, last_results


def test_parameters_are_all_counted_once(task_model):
    for settings in ({}, {"sharing": "none"}, {"sharing": "parameters"}, {"attention": "mha"},
                     {"generator": "static", "context_stride": 1}):  # fmt: skip
        model = task_model(**settings).float()
        found = cost(model)
        assert found.parameters == sum(p.numel() for p in model.parameters())
        assert (found.generator == 0) == (settings.get("attention") == "mha")
    d, d_ff, layers = 16, 16, 2
    assert cost(task_model(attention="mha").float()).attention == layers * (4 * d * d + 4 * d)
    assert found.feed_forward == layers * (2 * d * d_ff + d + d_ff)


@pytest.mark.parametrize("attention", ["mha", "damcha"])
def test_multiply_adds_agree_with_the_formula(task_model, attention):
    model = task_model(attention=attention).float()
    d, d_ff, n_layers, h, length, patch = 16, 16, 2, 2, 9, 16
    layer = 2 * length * d * d_ff + 2 * length**2 * d
    if attention == "mha":
        layer += 4 * length * d * d
        generator = 0
    else:
        layer += 2 * length * d * d + 10 * d * d // h  # 5 refreshes of 2 queries, padded
        positions, hidden = 5, (8, 8)
        generator = positions * (d * 8 + 8 * 8 + hidden[1] * d * d // h)
    ends = (length - 1) * patch * d + length * (d * 2 * d + 2 * d * patch)
    assert cost(model).multiply_adds == n_layers * layer + generator + ends


def test_what_runs_differ_in(tiny_runs):
    runs = [open_run(tiny_runs / name) for name in ("fashion-damcha", "unshared")]
    assert differences(runs) == {"sharing": ("stack", "none")}
    assert differences(runs[:1]) == {}


def test_last_and_best_results(tmp_path, tiny_runs):
    import shutil

    shutil.copytree(tiny_runs / "mha", tmp_path / "mha")
    lines = [
        {"epoch": k, "train_loss": 1.0, "valid_loss": v} for k, v in enumerate((3, 1, None, 2))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "mha" / "metrics.jsonl").write_text(text)
    found = last_results(open_run(tmp_path / "mha"))
    assert found == {"train": 1.0, "valid": 2.0, "best": 1, "best_epoch": 1, "accuracy": None}
