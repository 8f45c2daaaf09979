"""What all tests share: one thread, fixed Hypothesis profiles, tiny models, float64 helpers."""

import os

import pytest
import torch
from hypothesis import settings

from damcha.config import RunConfig
from damcha.model import build_model

torch.set_num_threads(1)

# The suite must give the same verdict every time; "search" looks for new counterexamples.
settings.register_profile("fixed", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("search", max_examples=400, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

TINY = {
    "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 16, "hidden_dims": "8,8",
    "context_stride": 2, "image_size": 12, "patch_size": 4,
}  # fmt: skip


def _randomise(module, seed=0, scale=0.4):
    """Give every parameter an ordinary value: an initial value of 0 or 1 would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * scale)
    return module.eval()


@pytest.fixture(scope="session")
def randomise():
    """``randomise(module, seed=0, scale=0.4)``: random weights, eval mode, the module itself."""
    return _randomise


@pytest.fixture(scope="session")
def normal():
    """``normal(*shape, seed=0)``: a float64 tensor of standard normal numbers."""

    def draw(*shape, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return draw


@pytest.fixture(scope="session")
def task_config():
    """``task_config(task, **settings)``: a tiny configuration of that task."""

    def make(task="image_autoregression", **settings):
        text = task == "language_modelling"
        base = {"name": "tiny", "task": task}
        if text:
            base["data"] = {"dataset": "text", "seq_len": 10}
        return RunConfig.model_validate(base).override({**TINY, **settings})

    return make


@pytest.fixture(scope="session")
def task_model(task_config):
    """``task_model(task, **settings)``: a tiny float64 model in eval mode, random weights."""

    def make(task="image_autoregression", *, seed=0, **settings):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = build_model(task_config(task, **settings)).double()
        return _randomise(model, seed, 0.25).requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def shared_model(task_model):
    """A tiny autoregressive image model with one shared metric; never to be changed."""
    return task_model()
