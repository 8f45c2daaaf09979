"""Tiny runs, written as training writes them."""

import pytest
import torch

from damcha.checkpoint import write_weights
from damcha.config import RunConfig
from damcha.model import build_model

TINY = {
    "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 16, "hidden_dims": "8",
    "image_size": 8, "patch_size": 4,
}  # fmt: skip


@pytest.fixture(scope="session")
def config():
    return RunConfig(name="tiny").override(TINY)


@pytest.fixture(scope="session")
def text_config():
    return RunConfig.model_validate(
        {"name": "words", "task": "language_modelling", "data": {"dataset": "text"}}
    ).override({**TINY, "seq_len": 12})


@pytest.fixture
def model(config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_model(config)


@pytest.fixture
def make_run(tmp_path, config):
    """Write a run folder; epoch k holds the weights of seed k."""

    def make(epochs=(0, 1, 2), config=config, name="tiny", dtype=torch.float32):
        folder = tmp_path / name
        (folder / "samples").mkdir(parents=True)
        (folder / "config.json").write_text(config.to_json())
        (folder / "README.md").write_text("# tiny\n")
        lines = [f'{{"epoch": {epoch}, "train_loss": {1 / (epoch + 1)}}}\n' for epoch in epochs]
        (folder / "metrics.jsonl").write_text("".join(lines))
        for epoch in epochs:
            with torch.random.fork_rng():
                torch.manual_seed(epoch)
                state = build_model(config).state_dict()
            path = folder / f"epoch-{epoch:04d}.safetensors"
            write_weights(path, state, dtype, {"epoch": str(epoch)})
        return folder

    return make
