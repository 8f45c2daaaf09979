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
        base = {"name": "tiny", "task": task}
        text = {"language_modelling": "text", "sequence_to_sequence": "concepts"}.get(task)
        if text:
            base["data"] = {"dataset": text, "seq_len": 10}
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


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory, task_config):
    """A folder of small untrained runs of every kind, with samples; two of them are damaged."""
    import numpy as np
    from PIL import Image

    from damcha.checkpoint.weights import write_weights

    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)

    def make(name, task="image_autoregression", epochs=(0, 1, 10), **settings):
        run = folder / name
        (run / "samples").mkdir(parents=True)
        config = task_config(task, name=name, **settings)
        (run / "config.json").write_text(config.to_json())
        (run / "README.md").write_text("# A tiny run\n\n![picture](http://example.org/x.png)\n")
        means = {}
        for epoch in epochs:
            with torch.random.fork_rng():
                torch.manual_seed(epoch)
                model = _randomise(build_model(config).float(), epoch, 0.3)
            about = {"epoch": str(epoch)}
            write_weights(run / f"epoch-{epoch:04d}.safetensors", model.state_dict(), None, about)
            d = config.model.d_model
            means[f"epoch-{epoch:04d}"] = torch.full((1, 5, d, d), 0.25)
        lines = [f'{{"epoch": {k}, "train_loss": {2 - k / 20}}}\n' for k in range(11)]
        (run / "metrics.jsonl").write_text("".join(lines))
        if task == "language_modelling":
            (run / "samples" / "first.txt").write_text("To be,\nor")
            (run / "samples" / "second.txt").write_text("naïve")
        elif task == "sequence_to_sequence":
            (run / "samples" / "pair.txt").write_text("ab\tcd\n")
        else:
            for sample in ("bag", "boot"):
                pixels = rng.integers(0, 256, (12, 12), np.uint8)
                Image.fromarray(pixels).save(run / "samples" / f"{sample}.png")
        if task == "image_autoregression" and config.model.attention == "damcha":
            if config.model.metric.sharing == "stack":
                write_weights(run / "mean-metric.safetensors", means)
        return run

    make("fashion-damcha")
    make("mha", attention="mha")
    for other in ("moa", "dcmha", "iha"):
        make(other, attention=other)
    make("text", "language_modelling")
    make("pairs", "sequence_to_sequence")
    make("unshared", sharing="none", epochs=(3,))
    make("bilinear", aggregation="bilinear", epochs=(3,))
    make("classes", "image_classification", causal=False, context="full", context_stride=1,
         n_classes=3, class_names="bag,<b>boot</b>,coat")  # fmt: skip
    (make("no-config") / "config.json").unlink()
    sick = make("sick")
    bad = build_model(task_config(name="sick")).float()
    for parameter in bad.parameters():
        parameter.data.fill_(float("nan"))
    about = {"epoch": "10"}
    write_weights(sick / "epoch-0010.safetensors", bad.state_dict(), None, about)
    return folder
