import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import damcha.checkpoint as checkpoint
from damcha.checkpoint import Run, list_runs, open_run, pick_device, read_weights, write_weights
from damcha.config import RunConfig
from damcha.errors import CheckpointError, ConfigError, InputError
from damcha.model import build_model


def rewrite(folder, epoch, change):
    """Change the tensors of a snapshot."""
    path = folder / f"epoch-{epoch:04d}.safetensors"
    write_weights(path, change(read_weights(path)), metadata={"epoch": str(epoch)})


# ---------------------------------------------------------------- a sound run


def test_a_run_is_opened(make_run, config):
    folder = make_run()
    (folder / "samples" / "b.png").write_bytes(b"")
    (folder / "samples" / "A.JPG").write_bytes(b"")
    (folder / "samples" / "CREDITS.md").write_text("")
    run = open_run(str(folder))
    assert run.path == folder
    assert (run.name, run.task) == ("tiny", "image_autoregression")
    assert run.config == config
    assert run.epochs == (0, 1, 2)
    assert [line["epoch"] for line in run.metrics] == [0, 1, 2]
    assert run.card == "# tiny\n"
    assert [path.name for path in run.samples] == ["A.JPG", "b.png"]
    assert run.strays == run.notes == ()


def test_a_model_has_the_weights_of_its_epoch_and_is_ready_to_look_at(make_run, config):
    run = open_run(make_run())
    for epoch in (0, 2, None):
        model = run.load(epoch, device="cpu")
        with torch.random.fork_rng():
            torch.manual_seed(2 if epoch is None else epoch)
            expected = build_model(config).state_dict()
        assert not model.training
        assert not any(weight.requires_grad for weight in model.parameters())
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, expected[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_disk_is_float32_in_the_model_and_shown(make_run, dtype):
    run = open_run(make_run(dtype=dtype))
    assert {weight.dtype for weight in run.load(device="cpu").parameters()} == {torch.float32}
    assert run.stored_dtypes(0) == ({torch.float16: "F16", torch.bfloat16: "BF16"}[dtype],)


def test_loading_draws_no_random_numbers(make_run):
    run = open_run(make_run())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run.load(device="cpu")
    assert torch.equal(torch.rand(3), expected)


def test_two_models_share_nothing(make_run):
    run = open_run(make_run())
    one, two = run.load(device="cpu"), run.load(device="cpu")
    next(one.parameters()).add_(1)
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


def test_the_digest_is_that_of_the_file(make_run):
    folder = make_run()
    run = open_run(folder)
    content = (folder / "epoch-0001.safetensors").read_bytes()
    assert run.weights_digest(1) == hashlib.sha256(content).hexdigest()
    assert run.weights_digest() != run.weights_digest(1)


@pytest.mark.parametrize(
    "settings",
    [
        {"sharing": "parameters"},
        {"sharing": "none"},
        {"generator": "static"},
        {"attention": "mha"},
        {"aggregation": "bilinear"},
        {"positions": "rotary"},
        {"positions": "sinusoidal", "norm": "post"},
        {"task": "image_classification"},
        {"task": "image_reconstruction"},
    ],
    ids=str,
)
def test_every_kind_of_model_makes_the_round_trip(make_run, config, settings):
    config = config.override(settings)
    model = open_run(make_run((0,), config)).load(device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = build_model(config).eval().requires_grad_(False)
    images = torch.rand(2, 1, 8, 8) * 2 - 1
    with torch.no_grad():
        assert torch.equal(model(images), expected(images))


def test_a_generator_that_layers_share_is_stored_once(make_run, config):
    folder = make_run((0,), config.override({"sharing": "parameters", "n_layers": 8}))
    header = checkpoint.read_header(folder / "epoch-0000.safetensors")
    assert len({name.split(".metric.")[-1] for name in header.tied}) <= len(header.shapes)
    assert not set(header.tied) & set(header.shapes)
    model = open_run(folder).load(device="cpu")
    assert set(model.state_dict()) == set(header.tied) | set(header.shapes)


def test_the_mean_metric_of_an_epoch(make_run):
    folder = make_run((0, 1, 2, 3, 4))
    run = open_run(folder)
    assert run.mean_metric() is None
    means = {
        "epoch-0000": torch.ones(1, 4, 16, 16),
        "epoch-0001": torch.ones(1, 4, 8, 8),
        "epoch-0002": torch.full((1, 4, 16, 16), float("nan")),
        "epoch-0004": torch.ones(16, 16),
    }
    write_weights(folder / "mean-metric.safetensors", means, torch.float16)
    run = open_run(folder)
    assert run.strays == run.notes == ()
    mean = run.mean_metric(0)
    assert mean.dtype == np.float32
    np.testing.assert_array_equal(mean, means["epoch-0000"])
    assert run.mean_metric(3) is None
    for epoch, shape in ((1, r"\[1, 4, 8, 8\]"), (4, r"\[16, 16\]")):
        with pytest.raises(CheckpointError, match=f"mean of epoch {epoch} has shape {shape}, not"):
            run.mean_metric(epoch)
    with pytest.raises(CheckpointError, match="epoch 2 has a non-finite mean metric; choose anoth"):
        run.mean_metric(2)
    (folder / "mean-metric.safetensors").unlink()
    os.mkfifo(folder / "mean-metric.safetensors")
    with pytest.raises(CheckpointError, match="is a pipe"):
        run.mean_metric(0)


# ---------------------------------------------------------------- epochs (C9)


def test_epochs_are_in_numeric_order_whatever_their_digits(make_run):
    folder = make_run((1, 2, 10))
    for epoch in (1, 2, 10):
        (folder / f"epoch-{epoch:04d}.safetensors").rename(folder / f"epoch-{epoch}.safetensors")
    run = open_run(folder)
    assert run.epochs == (1, 2, 10)
    assert run.load(10, device="cpu") is not None
    assert [path.name for path in run.files] == [f"epoch-{n}.safetensors" for n in (1, 2, 10)]


def test_one_epoch_is_enough(make_run):
    run = open_run(make_run((7,)))
    assert run.epochs == (7,)
    assert run.load(device="cpu") is not None


def test_files_that_are_not_of_a_run_are_listed_apart(make_run):
    folder = make_run()
    for name in ("epoch-best.safetensors", "weights.safetensors", "notes.txt", ".hidden"):
        (folder / name).write_text("x")
    (folder / "resume.pt").write_text("x")
    (folder / "logs").mkdir()
    run = open_run(folder)
    assert run.epochs == (0, 1, 2)
    assert run.strays == ("epoch-best.safetensors", "logs", "notes.txt", "weights.safetensors")


def test_an_epoch_twice_is_told(make_run):
    folder = make_run()
    shutil.copy(folder / "epoch-0001.safetensors", folder / "epoch-1.safetensors")
    run = open_run(folder)
    assert run.epochs == (0, 1, 2)
    assert run.notes == (
        "epoch-0001.safetensors and epoch-1.safetensors are both epoch 1; the first is used",
    )
    assert run.strays == ("epoch-1.safetensors",)


def test_an_epoch_that_is_not_there_says_which_are(make_run):
    run = open_run(make_run((0, 12)))
    with pytest.raises(CheckpointError, match="run 'tiny' has no weights of epoch 3; it has 0, 12"):
        run.load(3)
    with pytest.raises(CheckpointError, match="no weights of epoch 3"):
        run.weights_digest(3)


def test_a_snapshot_that_lost_its_file_is_told(make_run, config):
    # Training writes the end of epochs 0, 1, 12 … into metrics.jsonl and a file for each.
    folder = make_run((0, 1, 12))
    (folder / "epoch-0001.safetensors").unlink()
    (folder / "epoch-0012.safetensors").rename(folder / "final.safetensors")
    run = open_run(folder)
    assert run.epochs == (0,)
    assert run.notes == ("the weights of epochs 1, 12 are missing",)
    assert run.strays == ("final.safetensors",)


def test_a_file_that_vanishes_after_opening_is_told(make_run):
    folder = make_run()
    run = open_run(folder)
    (folder / "epoch-0001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"epoch-0001.safetensors is missing in"):
        run.load(1)
    assert run.load(2, device="cpu") is not None


def test_a_snapshot_under_another_epochs_name_is_refused(make_run):
    folder = make_run()
    (folder / "epoch-0001.safetensors").rename(folder / "epoch-0009.safetensors")
    run = open_run(folder)
    with pytest.raises(
        CheckpointError, match="says that it holds epoch '1', not 9: it was renamed"
    ):
        run.load(9)


# ---------------------------------------------------------------- broken weights


def test_an_epoch_with_nan_is_named_and_the_others_load(make_run):
    # C8
    folder = make_run()

    def break_one(state):
        name = "stack.layers.0.ff.0.weight"
        state[name][0, 0] = float("nan")
        return state

    rewrite(folder, 1, break_one)
    run = open_run(folder)
    with pytest.raises(CheckpointError, match="epoch 1 has non-finite weights: 1 of the 256"):
        run.load(1)
    assert run.load(0, device="cpu") is not None
    assert run.load(2, device="cpu") is not None


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_dropped(make_run, prefix):
    folder = make_run()
    expected = open_run(folder).load(1, device="cpu").state_dict()
    rewrite(folder, 1, lambda state: {prefix + name: w for name, w in state.items()})
    for name, weight in open_run(folder).load(1, device="cpu").state_dict().items():
        assert torch.equal(weight, expected[name])


def test_weights_that_do_not_fit_the_configuration_are_named(make_run, config):
    folder = make_run()
    (folder / "config.json").write_text(config.override({"d_model": 32}).to_json())
    with pytest.raises(
        CheckpointError, match=r"epoch 2 does not fit the configuration: '.*' has sh"
    ):
        open_run(folder).load()
    (folder / "config.json").write_text(config.override({"n_layers": 3}).to_json())
    with pytest.raises(CheckpointError, match=r"it lacks 'stack.layers.2.* and \d+ more"):
        open_run(folder).load()


@pytest.mark.parametrize(
    "settings",
    [
        {"d_model": 4096, "n_layers": 20, "attention": "mha"},  # 5 GB of stack
        {"image_size": 1024, "patch_size": 1, "d_model": 1024},  # 4 GB of positions
    ],
    ids=str,
)
def test_weights_that_do_not_fit_cost_no_memory(make_run, config, monkeypatch, settings):
    folder = make_run()
    big = config.override(settings)
    (folder / "config.json").write_text(big.to_json())
    devices = []
    real = build_model

    def watched(config):
        devices.append(torch.empty(0).device.type)
        return real(config)

    monkeypatch.setattr("damcha.checkpoint.run.build_model", watched)
    with pytest.raises(CheckpointError, match="epoch 2 does not"):
        open_run(folder).load(device="cpu")
    assert devices == ["meta"]


def test_a_cut_snapshot_leaves_the_others(make_run):
    folder = make_run()
    path = folder / "epoch-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    run = open_run(folder)
    with pytest.raises(
        CheckpointError, match=r"epoch-0001.safetensors: cut: [\d,]+ of [\d,]+ byte"
    ):
        run.load(1)
    assert run.load(0, device="cpu") is not None


def test_a_pickle_under_a_snapshots_name_is_not_opened(make_run, config):
    folder = make_run()
    torch.save(build_model(config), folder / "epoch-0001.safetensors")
    with pytest.raises(CheckpointError, match=r"is a pickle .* can run code when opened"):
        open_run(folder).load(1)


def test_a_snapshot_that_links_out_of_the_folder_or_is_a_pipe_is_left_out(make_run, tmp_path):
    folder = make_run()
    secret = tmp_path / "secret.safetensors"
    (folder / "epoch-0000.safetensors").rename(secret)
    (folder / "epoch-0000.safetensors").symlink_to(secret)
    (folder / "epoch-0001.safetensors").unlink()
    os.mkfifo(folder / "epoch-0001.safetensors")
    run = open_run(folder)
    assert run.epochs == (2,)
    link, pipe, missing = run.notes
    assert link.startswith("epoch-0000.safetensors is a link out of its folder, to ")
    assert pipe == "epoch-0001.safetensors is a pipe, socket or device, not a file"
    assert missing == "the weights of epochs 0, 1 are missing"


def test_a_link_that_appears_after_opening_is_not_followed(make_run, tmp_path):
    folder = make_run()
    run = open_run(folder)
    secret = tmp_path / "secret.safetensors"
    (folder / "epoch-0000.safetensors").rename(secret)
    (folder / "epoch-0000.safetensors").symlink_to(secret)
    for use in (run.load, run.weights_digest, run.stored_dtypes):
        with pytest.raises(CheckpointError, match="is a link out of its folder"):
            use(0)


# ---------------------------------------------------------------- broken folders


def test_what_is_no_folder_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no run folder '.*nothing'"):
        open_run(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file; a run is a folder"):
        open_run(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        open_run("a\0b")


def test_a_folder_without_settings_is_no_run(make_run):
    folder = make_run()
    (folder / "config.json").rename(folder / "config (1).json")
    with pytest.raises(CheckpointError, match=r"is not a run folder: it has no config.json"):
        open_run(folder)


def test_a_run_without_weights_says_why(make_run):
    folder = make_run((0,))
    (folder / "epoch-0000.safetensors").rename(folder / "epoch-0000.pt")
    with pytest.raises(CheckpointError, match=r"'tiny' has no weights: no epoch-NNNN.safetensors"):
        open_run(folder)
    (folder / "epoch-0000.safetensors").symlink_to("/etc/hostname")
    with pytest.raises(CheckpointError, match=r"'tiny' has no weights: epoch-0000.* is a link out"):
        open_run(folder)


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("model", "d_model", 10**9, "d_model: input should be less than or equal to 16384"),
        ("model", "n_heads", 5, "d_model=16 is not divisible by n_heads=5"),
        ("model", "colour", "red", "colour: no such setting"),
        (None, "format_version", 2, "format_version: input should be 1"),
    ],
)
def test_a_config_that_asks_for_the_impossible_is_told(
    make_run, config, section, field, value, message
):
    folder = make_run()
    tree = json.loads(config.to_json())
    (tree[section] if section else tree)[field] = value
    (folder / "config.json").write_text(json.dumps(tree))
    with pytest.raises(
        CheckpointError, match=rf"config\.json of run 'tiny': .*{re.escape(message)}"
    ):
        open_run(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_config_that_is_damaged_is_told(make_run, content):
    folder = make_run()
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json of run 'tiny': .*"):
        open_run(folder)


def test_a_config_that_is_too_large_or_a_pipe_is_not_opened(make_run):
    folder = make_run()
    (folder / "config.json").write_bytes(bytes(1_000_001))
    with pytest.raises(CheckpointError, match=r"config\.json has 1,000,001 bytes, more than"):
        open_run(folder)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json is a pipe, socket or device"):
        open_run(folder)


def test_missing_extras_are_told_but_do_not_stop_a_run(make_run):
    folder = make_run()
    (folder / "metrics.jsonl").unlink()
    (folder / "README.md").unlink()
    (folder / "samples").rmdir()
    run = open_run(folder)
    assert (run.metrics, run.card, run.samples) == ((), "", ())
    assert run.notes == (
        "metrics.jsonl is missing: there are no curves",
        "README.md is missing: the run has no card",
    )


def test_extras_that_are_not_files_are_told_but_do_not_stop_a_run(make_run):
    folder = make_run()
    for name in ("metrics.jsonl", "README.md"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    (folder / "samples" / "x.png").symlink_to("/etc/hostname")
    run = open_run(folder)
    assert (run.metrics, run.card, run.samples) == ((), "", ())
    assert [note.split(" is ")[0] for note in run.notes] == [
        "metrics.jsonl", "README.md", "samples: x.png",
    ]  # fmt: skip


def test_broken_lines_of_metrics_are_left_out_and_told(make_run):
    folder = make_run()
    lines = '{"epoch": 0}\n\n[1]\n{"epoch": true, "x": NaN}\n{"epoch": 1, "tr'
    (folder / "metrics.jsonl").write_text(lines)
    run = open_run(folder)
    assert [line["epoch"] for line in run.metrics] == [0, True]
    assert run.notes == ("metrics.jsonl: 2 lines cannot be read and are left out: 3, 5",)


# ---------------------------------------------------------------- many runs


def test_broken_runs_do_not_hide_the_others(make_run, tmp_path):
    make_run(name="b-good")
    make_run(name="a-good")
    (make_run(name="c-broken") / "config.json").write_text("{")
    (tmp_path / "d-empty").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "README.md").write_text("")
    (tmp_path / "link").symlink_to("a-good")
    runs, broken = list_runs(tmp_path)
    assert [run.name for run in runs] == ["a-good", "b-good", "a-good"]
    assert [name for name, _ in broken] == ["c-broken", "d-empty"]
    assert "config.json of run 'c-broken'" in broken[0][1]
    assert "it has no config.json" in broken[1][1]


def test_a_run_that_links_out_of_the_folder_is_not_followed(make_run, tmp_path):
    make_run(name="outside")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").symlink_to(tmp_path / "outside")
    runs, broken = list_runs(tmp_path / "runs")
    assert runs == []
    ((name, reason),) = broken
    assert name == "x"
    assert re.search("'x' is a link out of .* and is not followed", reason)


def test_a_folder_of_runs_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"the folder '.*nothing' cannot be listed"):
        list_runs(tmp_path / "nothing")


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_best_device_is_picked(monkeypatch, cuda, mps, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device() == torch.device(expected)
    assert pick_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_or_unknown_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device: this machine has no 'cuda'; use auto"):
        pick_device("cuda")
    with pytest.raises(ConfigError, match="device: 'tpu' is not one of auto, cpu, cuda, mps"):
        pick_device("tpu")


# ---------------------------------------------------------------- inputs


@pytest.fixture
def run(make_run):
    return open_run(make_run((0,)))


@pytest.fixture
def text_run(make_run, text_config):
    return open_run(make_run((0,), text_config))


def test_a_picture_becomes_what_the_model_takes(run, tmp_path):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(pixels).save(tmp_path / "x.png")
    example = run.prepare(tmp_path / "x.png")
    assert example.inputs.shape == (1, 1, 8, 8)
    assert example.inputs.dtype == torch.float32
    torch.testing.assert_close(
        example.inputs[0, 0], torch.from_numpy(pixels).float() / 127.5 - 1, rtol=0, atol=0
    )
    np.testing.assert_array_equal(example.seen[..., 0], pixels)
    assert example.labels == ("r0 c0", "r0 c1", "r1 c0", "r1 c1")
    assert example.name == "x.png"
    assert example.digest == hashlib.sha256(example.inputs.numpy().tobytes()).hexdigest()
    assert run.load(device="cpu")(example.inputs).shape == (1, 4, 16)


def test_one_picture_in_every_form_is_one_example(run, tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8))
    image.save(tmp_path / "x.png")
    path = tmp_path / "x.png"
    forms = [path, str(path), path.read_bytes(), image, np.asarray(image)]
    examples = [run.prepare(form) for form in forms]
    assert len({example.digest for example in examples}) == 1
    # A colour photo for a grey model: converted, and said so.
    assert any("grey" in note for note in examples[0].notes)


def test_options_reach_the_picture(run):
    picture = np.zeros((8, 8, 4), np.uint8)
    white, black = run.prepare(picture), run.prepare(picture, background=(0, 0, 0))
    assert (white.inputs.unique().tolist(), black.inputs.unique().tolist()) == ([1.0], [-1.0])
    assert run.prepare(picture, invert=True).inputs.unique().tolist() == [-1.0]
    with pytest.raises(InputError, match="no frame 1"):
        run.prepare(picture_bytes(picture), frame=1)


def picture_bytes(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_text_becomes_bytes(text_run):
    example = text_run.prepare("an é\n")
    assert example.inputs.dtype == torch.int64
    assert example.inputs.tolist() == [list("an é\n".encode())]
    assert example.labels == example.seen == ("a", "n", "␠", "é¹", "é²", "⏎")
    assert example.digest == hashlib.sha256(example.inputs.numpy().tobytes()).hexdigest()
    assert text_run.load(device="cpu")(example.inputs).shape == (1, 6, 256)


def test_a_long_text_is_cut_and_told(text_run):
    example = text_run.prepare("x" * 40)
    assert example.inputs.shape == (1, 12)
    assert any("first 12 of 40 bytes" in note for note in example.notes)


def test_a_text_file_is_read_from_a_path_or_its_bytes(text_run, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfabc\xff")
    (tmp_path / "link.txt").symlink_to("x.txt")
    for source in (tmp_path / "x.txt", tmp_path / "link.txt", b"abc\xff"):
        example = text_run.prepare(source)
        assert example.labels[:3] == ("a", "b", "c")
        assert any("UTF-8" in note for note in example.notes)
    assert text_run.prepare(tmp_path / "x.txt").name == "x.txt"


def test_a_text_file_that_cannot_be_read_is_told(text_run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "nothing", tmp_path / "pipe", tmp_path, Path("a\0b")):
        with pytest.raises(InputError, match="the text file cannot be read: "):
            text_run.prepare(path)


def test_a_picture_for_a_run_on_text_is_refused(text_run):
    with pytest.raises(InputError, match="this run reads text, not a ndarray; give a str"):
        text_run.prepare(np.zeros((8, 8)))


def test_a_lone_surrogate_is_replaced_and_told(text_run):
    example = text_run.prepare("a\ud800b")
    assert bytes(example.inputs[0].tolist()) == "a\ufffdb".encode()
    assert any("surrogate" in note for note in example.notes)


# ---------------------------------------------------------------- the package


def test_the_public_names_are_those_of_the_package():
    public = {name for name in dir(checkpoint) if not name.startswith("_")}
    modules = {"authors", "card", "files", "run", "weights", "resume"}
    assert public - modules == set(checkpoint.__all__)


def test_the_format_version_of_the_documentation_is_that_of_the_code(config):
    assert f"version {config.format_version}" in checkpoint.__doc__
    assert isinstance(Run, type)
    assert RunConfig.from_json(config.to_json()) == config
