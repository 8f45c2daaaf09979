import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import damcha.training as training
from damcha.checkpoint import open_run
from damcha.cli import main

IDX = Path(__file__).parents[1] / "data" / "idx"
TINY = (
    "d_model=16 n_heads=2 n_layers=1 d_ff=16 hidden_dims=8 patch_size=7 epochs=2 "
    "steps_per_epoch=5 batch_size=4 warmup_steps=2 snapshot_dtype=float32 dropout=0.1"
).split()


def arguments(out, *settings, preset="fashion", data=IDX):
    pairs = [word for pair in (*TINY, *settings) for word in ("--set", pair)]
    return ["train", preset, "--data", str(data), "--out", str(out), "--cpu", *pairs]


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def records(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def assert_same_run(folder, reference):
    assert records(folder) == records(reference)
    names = {path.relative_to(reference) for path in reference.rglob("*")}
    assert {path.relative_to(folder) for path in folder.rglob("*")} == names
    for path in reference.glob("*.safetensors"):
        assert (folder / path.name).read_bytes() == path.read_bytes()


# What it says -------------------------------------------------------------------------------------


def test_a_run_from_start_to_end(tmp_path):
    result = run(*arguments(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    first, last = records(tmp_path / "run")
    for record in (first, last):
        said = f"epoch {record['epoch']}: train_loss {record['train_loss']:.4f}, valid_loss "
        assert said in result.stdout
    assert result.stdout.endswith(f"{tmp_path / 'run'} is complete\n")
    # 10/10 [00:01<00:00, 55.1step/s, loss 0.6043, 1,837 tokens/s]
    bar = re.findall(
        r" (\d+)/10 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+step/s, loss \d\.\d{4}, [\d,]+ tokens/s\]",
        result.stderr,
    )
    assert bar and bar[-1] == "10"
    again = run(*arguments(tmp_path / "run"))
    assert again.exit_code == 0 and not again.stderr
    assert again.stdout == f"{tmp_path / 'run'} is complete: nothing left to train\n"


def test_the_card_has_the_command_without_the_machine(tmp_path):
    run(*arguments(tmp_path / "run", "epochs=1", "hidden_dims=[8, 8]"))
    card = (tmp_path / "run" / "README.md").read_text()
    assert "`damcha train fashion --data idx --cpu --set d_model=16 --set" in card
    assert "--set 'hidden_dims=[8, 8]'`" in card
    assert str(tmp_path) not in card and str(IDX) not in card


def test_a_shipped_run_is_its_preset_with_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = arguments("unused", "epochs=1", "steps_per_epoch=1", preset="fashion-mha")
    place = words.index("--out")
    result = run(*words[:place], *words[place + 2 :])
    assert result.exit_code == 0, result.output
    opened = open_run(tmp_path / "runs" / "fashion-mha")
    assert opened.config.model.attention == "mha" and opened.config.name == "fashion-mha"


def test_tensorboard_option(tmp_path):
    pytest.importorskip("tensorboard")
    result = run(*arguments(tmp_path / "run", "epochs=1"), "--tensorboard", tmp_path / "logs")
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "logs").glob("events.out.tfevents.*"))


def test_only_the_first_of_several_processes_speaks(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    result = run(*arguments(tmp_path / "run"))
    assert result.exit_code == 0 and result.output == ""
    assert len(records(tmp_path / "run")) == 2


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"preset": "fashoin"},
            "^damcha: fashoin: no such preset; choose from cifar10, .*text-unsh",
        ),
        ({"data": "/nowhere"}, "^damcha: /nowhere: no such file or folder; put train-images-idx3"),
        (
            {"data": Path(__file__).parent},
            "^damcha: .*: no train-images-idx3-ubyte or .*; put train",
        ),
        (
            {"settings": ["width=8"]},
            "^damcha: width: no such setting; the settings are aggregation",
        ),
        ({"settings": ["d_model"]}, "^damcha: --set d_model: write it as field=value, e.g. --set"),
        (
            {"settings": ["d_model=1000000000"]},
            r"^damcha: model\.d_model: .* or equal to 16384 \(g",
        ),
        ({"settings": ["n_heads=7"]}, "^damcha: n_heads: d_model=16 is not divisible by n_heads=7"),
        ({"settings": ["context=full"]}, "^damcha: context: .* leaks the future into every score"),
        ({"settings": ["patch_size=4", "image_size=32"]}, "^damcha: image_size, channels: fashion"),
    ],
)
def test_a_mistake_is_one_line(change, message, tmp_path):
    settings = change.pop("settings", ())
    result = run(*arguments(tmp_path / "run", *settings, **change))
    assert result.exit_code == 2 and result.stdout == ""
    assert re.search(message, result.stderr) and result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_run(tmp_path):
    assert run(*arguments(tmp_path / "run", "epochs=1")).exit_code == 0
    result = run(*arguments(tmp_path / "run", "epochs=1", "lr=0.01"))
    assert result.exit_code == 2
    assert re.fullmatch(
        r"damcha: .*run holds another run: lr is 0\.002 there and 0\.01 here; choose another "
        r"folder \(--out\) or the same settings\n",
        result.stderr,
    )


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path, monkeypatch):
    def full(folder, state):
        raise OSError(28, "No space left on device", str(folder / "resume.pt"))

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_resume", full)
        result = run(*arguments(tmp_path / "run"))
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert result.stderr.endswith(f"damcha: {tmp_path}/run/resume.pt: No space left on device\n")
    assert run(*arguments(tmp_path / "run")).exit_code == 0
    assert run(*arguments(tmp_path / "whole")).exit_code == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_bug_keeps_its_traceback(tmp_path, monkeypatch):
    def bug(config, step):
        raise OSError("made by us, not by the system")

    monkeypatch.setattr(training, "learning_rate", bug)
    result = run(*arguments(tmp_path / "run"))
    assert isinstance(result.exception, OSError)


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch):
    rate = training.learning_rate

    def interrupted(config, step):
        if step == 7:
            raise KeyboardInterrupt
        return rate(config, step)

    with monkeypatch.context() as patch:
        patch.setattr(training, "learning_rate", interrupted)
        result = run(*arguments(tmp_path / "run"))
    assert result.exit_code == 130 and "Traceback" not in result.output
    assert result.stderr.endswith(
        f"stopped; the same command continues {tmp_path}/run after its last finished epoch\n"
    )
    assert run(*arguments(tmp_path / "run")).exit_code == 0
    assert run(*arguments(tmp_path / "whole")).exit_code == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# Processes ----------------------------------------------------------------------------------------


def environment():
    """That of a fresh shell on one core, whatever this one is part of."""
    outside = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**outside, "OMP_NUM_THREADS": "1"}


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_at_random_moments(tmp_path):
    """kill -9 in the middle of epochs, three times; then the curve of a run that was never hurt."""
    settings = ("epochs=16", "steps_per_epoch=25")
    words = [sys.executable, "-m", "damcha.cli", *arguments(tmp_path / "run", *settings)]
    metrics = tmp_path / "run" / "metrics.jsonl"
    for target in (1, 5, 9):
        process = subprocess.Popen(
            words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        patience = time.monotonic() + 120
        while not metrics.exists() or len(records(metrics.parent)) < target:
            assert process.poll() is None and time.monotonic() < patience
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.15))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert open_run(tmp_path / "run").config.train.epochs == 16  # all that shows is whole
        assert target <= len(records(metrics.parent)) < 16
    result = run(*arguments(tmp_path / "run", *settings))
    assert result.exit_code == 0, result.output
    assert run(*arguments(tmp_path / "whole", *settings)).exit_code == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--nproc-per-node=2", "--master-port"],
    "accelerate": [
        "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
        "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port",
    ],
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_give_the_loss_of_one(launcher, tmp_path):
    """Equal up to rounding; dropout is off, since each process draws its own.

    The global batch's gradient is a mean of two means instead of one mean, which differs by
    rounding: some 2⁻²⁴ ≈ 6e-8 of its size in float32, in each of 20 steps, so of the order of 1e-6
    in all (9e-9 measured). 1e-5 leaves a margin for other processors and is far below what mistakes
    do: both processes on one share of the batch, gradients not exchanged, or summed where they
    should be averaged, changed one of these losses by 3e-3 or more.
    """
    settings = ("dropout=0", "epochs=2", "steps_per_epoch=10", "batch_size=6")
    words = [*LAUNCHERS[launcher], free_port(), "-m", "damcha.cli"]
    done = subprocess.run(
        [sys.executable, "-m", *words, *arguments(tmp_path / "two", *settings)],
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is complete") == 1
    assert "2 processes on cpu" in (tmp_path / "two" / "README.md").read_text()
    assert run(*arguments(tmp_path / "one", *settings)).exit_code == 0
    for two, one in zip(records(tmp_path / "two"), records(tmp_path / "one"), strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
        assert two["valid_loss"] == pytest.approx(one["valid_loss"], rel=1e-5)
    assert {path.name for path in (tmp_path / "two").iterdir()} == {
        path.name for path in (tmp_path / "one").iterdir()
    }
