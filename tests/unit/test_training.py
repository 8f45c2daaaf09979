import gzip
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import damcha.training as training
from damcha.checkpoint import open_run, read_weights
from damcha.config import RunConfig, TrainConfig
from damcha.data import load_dataset
from damcha.data.evaluation import image_tensor
from damcha.errors import CheckpointError, ConfigError, InputError
from damcha.model import build_model
from damcha.training import evaluate, held_out, learning_rate, make_optimizer, train

IDX = Path(__file__).parents[1] / "data" / "idx"
TINY = {
    "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16, "hidden_dims": "8", "patch_size": 7,
    "context_stride": 2, "epochs": 3, "steps_per_epoch": 4, "batch_size": 4, "warmup_steps": 2,
    "lr": 3e-3, "snapshots": "0,1", "snapshot_dtype": "float32",
}  # fmt: skip
CLASSIFIER = {"task": "image_classification", "causal": False, "context_stride": 1}
RECONSTRUCTOR = {"task": "image_reconstruction", "causal": False, "context_stride": 1}
TEXT = {"task": "language_modelling", "dataset": "text", "seq_len": 12}


def make(**settings):
    return RunConfig(name="tiny").override({**TINY, **settings})


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A small text: the names of numbers, in order."""
    ones = "one two three four five six seven eight nine".split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    text = " ".join(f"{ten}-{one}" for ten in tens for one in ones)
    path = tmp_path_factory.mktemp("text") / "numbers.txt"
    path.write_text(text)
    return path


def finish(config, folder, data=IDX, **options):
    return list(train(config, folder, data, device="cpu", **options))


def records(folder):
    """metrics.jsonl without the times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def assert_same_run(folder, reference):
    """Bit for bit the same measurements, weights and samples, and no file more or less."""
    names = {path.relative_to(reference) for path in reference.rglob("*")}
    assert {path.relative_to(folder) for path in folder.rglob("*")} == names
    assert records(folder) == records(reference)
    for name in names:
        if name.suffix in (".safetensors", ".png", ".txt"):
            assert (folder / name).read_bytes() == (reference / name).read_bytes(), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A whole run with dropout: its masks must come back after a kill too."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    finish(make(dropout=0.2), folder)
    return folder


# What a step is made of ---------------------------------------------------------------------------


def test_learning_rate_warms_up_and_falls_to_a_tenth():
    config = TrainConfig(lr=2e-3, warmup_steps=4, epochs=2, steps_per_epoch=52)
    rates = [learning_rate(config, step) for step in range(104)]
    assert rates[:5] == pytest.approx([5e-4, 1e-3, 1.5e-3, 2e-3, 2e-3])
    assert rates[54] == pytest.approx((2e-3 + 2e-4) / 2)  # half way down
    assert all(a > b for a, b in itertools.pairwise(rates[4:]))
    assert learning_rate(config, 104) == learning_rate(config, 999) == pytest.approx(2e-4)
    flat = config.model_copy(update={"schedule": "constant"})
    assert [learning_rate(flat, step) for step in (0, 4, 103)] == [5e-4, 2e-3, 2e-3]
    cold = config.model_copy(update={"warmup_steps": 0})
    assert learning_rate(cold, 0) == 2e-3
    long = config.model_copy(update={"warmup_steps": 1000})
    assert learning_rate(long, 103) == pytest.approx(2e-3 * 104 / 1000)


@pytest.mark.parametrize("settings", [{}, TEXT])
def test_a_batch_follows_from_seed_and_step_alone(settings, words):
    config = make(**settings)
    data = load_dataset(config.data, words if settings else IDX, "train")

    def batch(step, seed=0, rank=0, world=1):
        torch.manual_seed(np.random.default_rng().integers(2**31))  # no matter what came before
        return training._batch(data, make(**settings, seed=seed), step, rank, world)[0]

    assert torch.equal(batch(5), batch(5))
    assert not torch.equal(batch(5), batch(6))
    assert not torch.equal(batch(5), batch(5, seed=1))
    shares = [batch(5, rank=rank, world=2) for rank in (0, 1)]
    assert torch.equal(torch.stack(shares, 1).flatten(0, 1), batch(5))


def test_every_example_comes_once_a_pass():
    n, size = 10, 4
    places = np.concatenate([training._order(n, 3, step * size, size) for step in range(10)])
    passes = places.reshape(4, n)
    assert all(sorted(one) == list(range(n)) for one in passes.tolist())
    assert len({tuple(one) for one in passes.tolist()}) == 4
    assert len(training._order(3, 0, 0, 8)) == 8  # a batch may be larger than the data


def test_text_batches_are_pieces_of_the_text(words):
    config = make(**TEXT)
    data = load_dataset(config.data, words, "train")
    pieces, _ = training._batch(data, config, 7, 0, 1)
    assert pieces.dtype == torch.int64 and pieces.shape == (4, 12)
    assert all(bytes(piece.tolist()) in data.bytes.tobytes() for piece in pieces)


def test_images_are_scaled_to_minus_one_and_one():
    images = np.array([0, 51, 255], np.uint8).reshape(1, 1, 3, 1)
    assert image_tensor(images).flatten().tolist() == pytest.approx([-1, -0.6, 1])
    assert image_tensor(np.zeros((2, 5, 4, 3), np.uint8)).shape == (2, 3, 5, 4)


def test_held_out_examples_are_spread_evenly(words):
    data = load_dataset(make().data, IDX, "train")
    inputs, labels = held_out(data, make(), 8)
    assert labels.tolist() == data.labels[[0, 5, 10, 15, 20, 25, 30, 35]].tolist()
    assert torch.equal(inputs, held_out(data, make(), 8)[0])
    assert len(held_out(data, make(), 10_000)[0]) == 36
    config = make(**TEXT)
    text = load_dataset(config.data, words, "valid")
    pieces, _ = held_out(text, config, 1000)
    assert pieces.shape == (len(text.bytes) // 12, 12)
    assert bytes(pieces[-1].tolist()) == text.bytes[-12:].tobytes()


def test_only_matrices_are_decayed():
    model = build_model(make())
    decayed, others = make_optimizer(model, TrainConfig(weight_decay=0.3)).param_groups
    assert decayed["weight_decay"] == 0.3 and others["weight_decay"] == 0
    assert {p.dim() for p in decayed["params"]} == {2} and {p.dim() for p in others["params"]} == {
        1
    }
    count = len(decayed["params"]) + len(others["params"])
    assert count == len(list(model.parameters()))


@pytest.mark.parametrize("sharing", ["stack", "none"])
def test_the_generator_can_have_a_learning_rate_of_its_own(sharing):
    model = build_model(make(sharing=sharing, mixing="layer"))
    groups = make_optimizer(model, TrainConfig(generator_lr=0.25, weight_decay=0.3)).param_groups
    assert [(g["factor"], g["weight_decay"]) for g in groups] == [
        (1, 0.3), (1, 0), (0.25, 0.3), (0.25, 0),
    ]  # fmt: skip
    slow = {id(p) for group in groups[2:] for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in slow}
    assert names == {
        name for name, _ in model.named_parameters()
        if "metric.hidden." in name or "metric.output." in name
    }  # fmt: skip
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_training_uses_the_generator_s_learning_rate(tmp_path):
    def moved(factor, name):
        config = make(generator_lr=factor, epochs=1, steps_per_epoch=1, warmup_steps=0)
        folder = tmp_path / str(factor)
        finish(config, folder)
        torch.manual_seed(config.train.seed)
        start = build_model(config).state_dict()[name]
        return float((read_weights(folder / "epoch-0000.safetensors")[name] - start).abs().max())

    for name, factor in (("stack.metric.output.bias", 0.25), ("head.0.bias", 1.0)):
        assert moved(1.0, name) == pytest.approx(3e-3, rel=1e-2)  # Adam's first step is lr
        assert moved(0.25, name) == pytest.approx(factor * 3e-3, rel=1e-2)


def test_evaluation_is_a_mean_over_examples_and_leaves_the_mode():
    config = make(**CLASSIFIER, dropout=0.5)
    torch.manual_seed(0)
    model = build_model(config).train()
    inputs, targets = torch.rand(7, 1, 28, 28), torch.arange(7)
    scores = evaluate(model, inputs, targets, batch_size=3)
    assert model.training and set(scores) == {"loss", "accuracy"}
    model.eval()
    single = [evaluate(model, inputs[i : i + 1], targets[i : i + 1])["loss"] for i in range(7)]
    assert scores["loss"] == pytest.approx(sum(single) / 7, rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"sharing": "none", "n_layers": 2}])
def test_mean_metric_is_the_mean_over_inputs(settings):
    torch.manual_seed(0)
    model = build_model(make(**settings)).train()
    inputs = torch.rand(5, 1, 28, 28) * 2 - 1
    mean = training.mean_metric(model, inputs, batch_size=2)
    assert mean.shape == (settings.get("n_layers", 1), 8, 16, 16) and model.training
    model.eval()
    with torch.no_grad(), training.tap(model) as capture:
        model(inputs)
    expected = torch.stack([record.metric.mean(0) for record in capture.records])
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-6)


def test_mean_metric_of_a_constant_and_of_moa():
    inputs = torch.rand(5, 1, 28, 28)
    model = build_model(make(generator="static", context_stride=1))
    mean = training.mean_metric(model, inputs, batch_size=2)
    torch.testing.assert_close(mean.flatten(), model.stack.metric.constant.detach())
    assert training.mean_metric(build_model(make(attention="moa")), inputs) is None


METRICS = [
    {}, {"attention": "mha"}, {"generator": "static", "context_stride": 1},
    {"sharing": "none"}, {"sharing": "parameters"}, {"aggregation": "bilinear"},
    {"constraint": "psd", "rank": 3}, {"constraint": "low_rank", "rank": 3},
    {"constraint": "symmetric"}, {"off_diagonal": "linear_combination", "layer_bias_rank": 2},
    {"off_diagonal": "separate"}, {"positions": "rotary", "norm": "post"}, CLASSIFIER,
    RECONSTRUCTOR, TEXT,
]  # fmt: skip


@pytest.mark.parametrize("settings", METRICS)
def test_every_weight_takes_part_in_the_loss(settings):
    """DistributedDataParallel stops at a weight without a gradient, and weights would be waste."""
    config = make(**{"n_layers": 2, **settings})
    torch.manual_seed(0)
    model = build_model(config)
    if config.task == "language_modelling":
        model.loss(torch.randint(256, (2, 12)), torch.zeros(2)).backward()
    else:
        model.loss(torch.rand(2, 1, 28, 28), torch.tensor([1, 2])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


# Whole runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"attention": "mha"}, RECONSTRUCTOR, CLASSIFIER, TEXT],
    ids=["autoregression", "mha", "reconstruction", "classification", "language"],
)
def test_training_lowers_the_loss(settings, tmp_path, words):
    config = make(**settings, epochs=2, steps_per_epoch=40, batch_size=18, lr=1e-2, snapshots="0")
    data = words if config.task == "language_modelling" else IDX
    steps = finish(config, tmp_path / "run", data, command="the command")
    assert [step.step for step in steps] == list(range(1, 81))
    assert all(step.n_steps == 80 and step.tokens == 18 * config.seq_len for step in steps)
    losses = [step.loss for step in steps]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    first, last = records(tmp_path / "run")
    assert (
        steps[-1].record["train_loss"] == last["train_loss"] == pytest.approx(sum(losses[40:]) / 40)
    )
    assert last["train_loss"] < first["train_loss"]
    assert (last["epoch"], last["step"]) == (1, 80)
    run = open_run(tmp_path / "run")
    assert run.epochs == (0, 1) and run.config == config and not run.strays and not run.notes
    assert len(run.samples) >= 1 and "the command" in run.card
    model = run.load(device="cpu")
    valid = held_out(load_dataset(config.data, data, "valid"), config, 1024)
    assert evaluate(model, *valid)["loss"] == last["valid_loss"]
    assert all(isinstance(run.prepare(sample).inputs, torch.Tensor) for sample in run.samples)
    kept = tmp_path / "run" / "mean-metric.safetensors"
    assert kept.exists() == (config.model.attention in ("damcha", "mha"))


def test_two_runs_are_equal_and_a_seed_changes_them(tmp_path, uninterrupted):
    finish(make(dropout=0.2), tmp_path / "again")
    assert_same_run(tmp_path / "again", uninterrupted)
    finish(make(dropout=0.2, seed=1), tmp_path / "other")
    assert records(tmp_path / "other") != records(uninterrupted)


def test_float16_snapshots_and_the_card(tmp_path):
    config = make(snapshot_dtype="float16")
    finish(config, tmp_path / "run", command="damcha train tiny --set seed=0")
    stored = read_weights(tmp_path / "run" / "epoch-0002.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.float16}
    card = " ".join((tmp_path / "run" / "README.md").read_text().split())
    last = records(tmp_path / "run")[-1]
    for said in (
        "Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747)",
        "Licence: MIT, Copyright 2017 Zalando SE.",
        "Made with: `damcha train tiny --set seed=0`",
        f"torch {torch.__version__}",
        "1 process on cpu",
        "3 epochs of 4 steps of 4 examples, seed 0",
        "DAMCHA; M is f_θ of the context, one metric for all layers, aggregation rowsum",
        f"| 2 | {last['train_loss']:.4f} | {last['valid_loss']:.4f} |",
        "Validation: 4 held-out examples",
        "Weights are stored as float16. Effect on the last epoch's validation: loss "
        f"{last['valid_loss']:.6f} in training,",
    ):
        assert said in card, said
    model = open_run(tmp_path / "run").load(device="cpu")
    valid = held_out(load_dataset(config.data, IDX, "valid"), config, 1024)
    assert f"{evaluate(model, *valid)['loss']:.6f} from the file" in card


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attention": "mha"}, "Attention: multi-head attention."),
        ({"sharing": "none", "aggregation": "bilinear"}, "a generator per layer, .* bilinear"),
        ({"sharing": "parameters"}, "one generator run in each layer"),
        ({"generator": "static", "context_stride": 1}, "M is a learned constant"),
    ],
)
def test_the_card_names_the_attention(settings, said, tmp_path):
    finish(make(**settings, epochs=1, steps_per_epoch=1), tmp_path / "run")
    assert re.search(said, (tmp_path / "run" / "README.md").read_text())


def test_samples_are_one_of_each_class(uninterrupted):
    data = load_dataset(make().data, IDX, "valid")
    names = sorted(path.stem for path in (uninterrupted / "samples").iterdir())
    assert names == sorted({data.class_names[label].lower() for label in data.labels})
    with Image.open(uninterrupted / "samples" / f"{names[0]}.png") as image:
        label = data.class_names.index(names[0].capitalize())
        expected = data.images[data.labels.tolist().index(label)][..., 0]
        assert np.array_equal(np.asarray(image), expected)


# Interrupted runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 9, 11, 12])
def test_a_run_left_alone_goes_on_as_if_nothing_had_been(steps, tmp_path, uninterrupted):
    folder = tmp_path / "run"
    progress = train(make(dropout=0.2), folder, IDX, device="cpu")
    for _ in range(steps):
        next(progress)
    progress.close()
    assert (folder / "resume.pt").exists() == (steps >= 4)
    torch.manual_seed(99)  # a new process has another random state
    later = finish(make(dropout=0.2), folder)
    assert [step.step for step in later] == list(range(steps // 4 * 4 + 1, 13))
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize("settings", [RECONSTRUCTOR, TEXT], ids=["reconstruction", "language"])
def test_other_tasks_resume_exactly_too(settings, tmp_path, words):
    config = make(**settings, generator_dropout=0.2, epochs=2)
    data = words if "dataset" in settings else IDX
    finish(config, tmp_path / "whole", data)
    progress = train(config, tmp_path / "parts", data, device="cpu")
    for _ in range(6):
        next(progress)
    progress.close()
    finish(config, tmp_path / "parts", data)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


DRIVER = """
import json, os, signal, sys
from pathlib import Path
import torch
from PIL import Image
import damcha.training as training
from damcha.checkpoint import read_weights
from damcha.checkpoint.resume import load_resume
from damcha.config import RunConfig

torch.set_num_threads(1)
base, data, settings = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
config = RunConfig.from_json(settings)
# Imports what torch's optimisers need, once, so that the children need not.
training.make_optimizer(training.build_model(config), config.train)

def train(folder, fatal, after=False):
    '''Train in a child that dies at its `fatal`-th renaming; return how it ended.'''
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    rename, done = os.replace, 0
    def replace(source, target):
        nonlocal done
        done += 1
        if done == fatal and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)
        if done == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
    os.replace = replace
    for _ in training.train(config, folder, data, device="cpu"):
        pass
    os._exit(0)

def look(folder):
    '''Read everything that can be seen; anything half-written raises.'''
    for path in folder.rglob("[!.]*"):
        if path.name == "config.json":
            RunConfig.from_json(path.read_bytes())
        elif path.name == "metrics.jsonl":
            assert path.read_text().endswith("\\n")
            [json.loads(line) for line in path.read_text().splitlines()]
        elif path.suffix == ".safetensors":
            read_weights(path)
        elif path.name == "resume.pt":
            load_resume(folder)
        elif path.suffix == ".png":
            Image.open(path).load()
        elif path.name == "README.md":
            assert path.read_text().endswith("mean nothing.\\n")
        else:
            assert path.name == "samples", path

for after in (False, True):
    fatal = 1
    while True:
        folder = base / f"{'after' if after else 'before'}-{fatal}"
        ended = train(folder, fatal, after)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, ended
        look(folder)
        assert train(folder, 0) == 0
        fatal += 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_killed_at_every_write(tmp_path):
    """SIGKILL just before and just after each file takes its name, config.json to README.md."""
    config = make(dropout=0.2, epochs=2, steps_per_epoch=2, snapshots="0")
    finish(config, tmp_path / "reference")
    (tmp_path / "killed").mkdir()
    arguments = [tmp_path / "killed", IDX, config.to_json()]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "killed").iterdir())
    # Each of two epochs writes weights, mean metric, metrics and resume state.
    n_files = 1 + 2 * 4 + len(list((tmp_path / "reference" / "samples").iterdir())) + 1
    assert len(folders) == 2 * (n_files + 1)
    for folder in folders:
        assert_same_run(folder, tmp_path / "reference")


def test_keyboard_interrupt_leaves_a_run_to_continue(tmp_path, uninterrupted, monkeypatch):
    def interrupted(config, step):
        if step == 9:
            raise KeyboardInterrupt
        return learning_rate(config, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "learning_rate", interrupted)
        finish(make(dropout=0.2), tmp_path / "run")
    assert len(records(tmp_path / "run")) == 2
    assert open_run(tmp_path / "run").epochs == (0, 1)
    finish(make(dropout=0.2), tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_complete_run_is_left_alone(tmp_path, uninterrupted):
    folder = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert finish(make(dropout=0.2), folder) == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_drafts_of_killed_writers_are_removed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.1-00ff00ff.tmp").write_text("{")
    finish(make(epochs=1, steps_per_epoch=1), tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
def test_a_damaged_resume_state_is_named(kept, tmp_path):
    folder = tmp_path / "run"
    progress = train(make(), folder, IDX, device="cpu")
    for _ in range(5):
        next(progress)
    progress.close()
    whole = (folder / "resume.pt").read_bytes()
    length = int(kept * len(whole)) if isinstance(kept, float) else kept
    (folder / "resume.pt").write_bytes(whole[:length])
    with pytest.raises(CheckpointError, match=r"^resume\.pt is damaged .*delete it to start"):
        finish(make(), folder)


def test_what_does_not_belong_together_is_refused(tmp_path):
    folder = tmp_path / "run"
    progress = train(make(), folder, IDX, device="cpu")
    for _ in range(9):
        next(progress)
    progress.close()
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics[:-9])
    with pytest.raises(CheckpointError, match=r"^metrics\.jsonl is damaged .*repair it, or start"):
        finish(make(), folder)
    (folder / "metrics.jsonl").write_text(metrics.splitlines()[0] + "\n")
    with pytest.raises(CheckpointError, match=r"has 1 epochs, but resume\.pt is from .* epoch 1;"):
        finish(make(), folder)
    (folder / "metrics.jsonl").write_text(metrics)
    torch.save({"epoch": 0}, folder / "resume.pt")
    with pytest.raises(CheckpointError, match=r"^resume\.pt is not a training state; delete it"):
        finish(make(), folder)
    other = {"epoch": 0, "model": {"w": torch.ones(2)}, "optimizer": {}, "scaler": None}
    torch.save(other, folder / "resume.pt")
    with pytest.raises(CheckpointError, match=r"^resume\.pt does not hold the weights of this"):
        finish(make(), folder)


# Refusals -----------------------------------------------------------------------------------------


def test_a_folder_of_another_run_is_refused(uninterrupted, tmp_path):
    with pytest.raises(
        ConfigError, match=r"run holds another run: lr is 0\.003 there and 0\.1 her"
    ):
        finish(make(dropout=0.2, lr=0.1), uninterrupted)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(ConfigError, match="notes is not empty and holds no run; choose another"):
        finish(make(), tmp_path / "notes")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["diary.txt"]
    with pytest.raises(ConfigError, match=r"diary\.txt cannot be made a run folder \(File exists"):
        finish(make(), tmp_path / "notes" / "diary.txt")


def test_wrong_data_leaves_no_folder_behind(tmp_path):
    with pytest.raises(InputError, match=r"no such file or folder; put train-images"):
        finish(make(), tmp_path / "run", tmp_path / "nowhere")
    with pytest.raises(
        ConfigError, match=r"^n_classes: the data has 10 classes, more than n_class"
    ):
        finish(make(**CLASSIFIER, n_classes=5), tmp_path / "run")
    names = ",".join("abcdefghij")
    with pytest.raises(ConfigError, match=r"^class_names: .* those of the data, T-shirt/top,Trous"):
        finish(make(**CLASSIFIER, class_names=names), tmp_path / "run")
    with pytest.raises(ConfigError, match="device: 'tpu' is not one of auto, cpu"):
        next(train(make(), tmp_path / "run", IDX, device="tpu"))
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, monkeypatch):
    score = training.TaskModel.loss
    seen = []

    def ruined(self, inputs, targets):
        seen.append(1)
        return score(self, inputs, targets) * (math.inf if len(seen) == 7 else 1)

    with monkeypatch.context() as patch:
        patch.setattr(training.TaskModel, "loss", ruined)
        with pytest.raises(ConfigError, match=r"^lr: the loss became inf at step 7; .*lower lr or"):
            finish(make(), tmp_path / "run")
    assert len(records(tmp_path / "run")) == 1 and open_run(tmp_path / "run").epochs == (0,)


def test_weights_ruined_by_the_last_step_of_an_epoch_are_not_kept(tmp_path, monkeypatch):
    clip = training.Accelerator.clip_grad_norm_
    seen = []

    def ruining(self, parameters, limit):
        parameters = list(parameters)
        clip(self, parameters, limit)
        seen.append(1)
        if len(seen) == 8:
            parameters[0].grad[0] = math.nan

    with monkeypatch.context() as patch:
        patch.setattr(training.Accelerator, "clip_grad_norm_", ruining)
        with pytest.raises(ConfigError, match=r"^lr: the validation loss became nan at step 8; "):
            finish(make(), tmp_path / "run")
    assert len(records(tmp_path / "run")) == 1 and open_run(tmp_path / "run").epochs == (0,)
    finish(make(), tmp_path / "run")  # the state of epoch 0 is sound
    assert len(records(tmp_path / "run")) == 3


def stub(monkeypatch, world):
    """Accelerate as it would be in one of `world` processes."""
    state = types.SimpleNamespace(process_index=0, num_processes=world)
    monkeypatch.setattr(training, "Accelerator", lambda **options: state)


def test_a_batch_that_does_not_divide_over_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    stub(monkeypatch, 3)
    with pytest.raises(
        ConfigError, match=r"^batch_size: 4 examples do not divide over 3 processes$"
    ):
        finish(make(), tmp_path / "run")


def test_processes_that_know_nothing_of_each_other_are_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    stub(monkeypatch, 1)
    with pytest.raises(
        ConfigError, match=r"^device: 2 processes were started, but on cpu they can"
    ):
        finish(make(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Logs ---------------------------------------------------------------------------------------------


def test_tensorboard_has_every_number_once(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = {"device": "cpu", "tensorboard": tmp_path / "logs"}
    progress = train(make(), tmp_path / "run", IDX, **options)
    for _ in range(8):  # epoch 1 has been logged, and goes on from there
        next(progress)
    progress.close()
    list(train(make(), tmp_path / "run", IDX, **options))
    log = events.EventAccumulator(str(tmp_path / "logs"))
    log.Reload()
    wanted = records(tmp_path / "run")
    assert set(log.Tags()["scalars"]) == {"train_loss", "valid_loss", "learning_rate", "seconds"}
    for name in ("train_loss", "valid_loss", "learning_rate"):
        scalars = log.Scalars(name)
        assert [scalar.step for scalar in scalars] == [4, 8, 12]
        numbers = [scalar.value for scalar in scalars]
        assert numbers == pytest.approx([record[name] for record in wanted], rel=1e-6)


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        ConfigError, match=r"^tensorboard: not installed; `pip install tensorboard`"
    ):
        finish(make(), tmp_path / "run", tensorboard=tmp_path / "logs")


def test_the_fixture_is_what_it_says():
    """40 pictures are enough for every class that the samples need."""
    labels = gzip.decompress((IDX / "train-labels-idx1-ubyte.gz").read_bytes())[8:]
    assert len(labels) == 40 and set(labels) == set(range(10))
