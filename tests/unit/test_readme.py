"""The README's Python runs as it is printed there."""

import re
from pathlib import Path

import pytest
import torch

from damcha.attention import ATTENTIONS, Cache
from damcha.model import build_model

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", [b for b in BLOCKS if "ATTENTIONS[" not in b])
def test_python_of_the_readme_runs(code, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    exec(compile(code, "README.md", "exec"), {})


def test_a_new_mechanism_works_everywhere(monkeypatch, task_config, normal):
    (code,) = (block for block in BLOCKS if "ATTENTIONS[" in block)
    monkeypatch.setattr("damcha.attention.ATTENTIONS", ATTENTIONS)
    before = dict(ATTENTIONS)
    try:
        exec(compile(code, "README.md", "exec"), {})
        (name,) = set(ATTENTIONS) - set(before)
        layer = ATTENTIONS[name](16, 4, batch_first=True).double()
        x, cache = normal(2, 6, 16), Cache()
        full = layer(x, x, x, is_causal=True)[0]
        steps = [layer(*[x[:, t : t + 1]] * 3, is_causal=True, cache=cache)[0] for t in range(6)]
        torch.testing.assert_close(torch.cat(steps, 1), full, rtol=0, atol=1e-12)
        model = build_model(task_config("language_modelling", attention=name))
        model.loss(torch.zeros(2, 10).long(), torch.zeros(2)).backward()
        assert len(code.strip().splitlines()) <= 20
    finally:
        ATTENTIONS.clear()
        ATTENTIONS.update(before)
