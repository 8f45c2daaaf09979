"""Targets that a model writes for held-out sources."""

import json

import numpy as np
import pytest
import torch

from damcha.analysis.generation import write_targets
from damcha.analysis.progress import Progress, finished
from damcha.config import DataConfig
from damcha.data.evaluation import evaluation_set
from damcha.errors import InputError
from damcha.symbols import Bytes


@pytest.fixture
def data(tmp_path):
    rows = [("a b", "A b."), ("a b", "B a!"), ("c", "See."), ("d e", "Dee."), ("longer one", "No")]
    groups = [0, 0, 1, 2, 3]
    lines = [
        json.dumps({"concept_set_idx": g, "concepts": source.split(), "target": target})
        for g, (source, target) in zip(groups, rows, strict=True)
    ]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    config = DataConfig(dataset="concepts", seq_len=10)
    return evaluation_set(config, tmp_path, 5, "test", Bytes())


@pytest.mark.parametrize("beams", [1, 2])
def test_one_target_a_source_with_all_its_references(task_model, data, beams):
    model = task_model("sequence_to_sequence")
    steps = list(write_targets(model, data, beams, size=2))
    assert all(isinstance(step, Progress) and step.total == 4 for step in steps[:-1])
    found = steps[-1]
    assert [one.source for one in found] == ["a b", "c", "d e", "longer one"]
    assert [one.references for one in found] == [("A b.", "B a!"), ("See.",), ("Dee.",), ("No",)]
    assert [one.cut for one in found] == [False, False, False, True]
    for one, place in zip(found, (0, 2, 3, 4), strict=True):
        row = data.data.rows([place])
        length = int(np.argmax(row[0] == 256)) + 1
        prompt = data.data.rows([place])[:, :length]
        alone = model.answer(torch.from_numpy(prompt), beams=beams)[0, length:].tolist()
        assert one.hypothesis == model.spelled(alone)
        assert one.ended == (257 in alone)


def test_other_models_write_none(task_model, data):
    with pytest.raises(InputError, match="task 'language_modelling' writes no targets; choose"):
        finished(write_targets(task_model("language_modelling"), data))
