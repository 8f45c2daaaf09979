import argparse
import hashlib
import json
import os
import pathlib
import pickle
import struct
import types
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from damcha.checkpoint.weights import (
    Header,
    check_fit,
    clean_names,
    load_strictly,
    read_header,
    read_weights,
    write_weights,
)
from damcha.errors import CheckpointError

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}


def raw(path, header, data=b"", length=None):
    """Write a file of the format by hand, with any header and any claimed length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "epoch-0007.safetensors"


# ---------------------------------------------------------------- write and read


def test_what_is_written_is_read(path):
    write_weights(path, STATE, metadata={"epoch": "7"})
    state = read_weights(path)
    assert state.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], tensor)
    assert read_header(path) == Header(
        {"a.weight": "F32", "b": "I64"},
        {"a.weight": (2, 3), "b": (2,)},
        {"damcha_format": "1", "epoch": "7", "format": "pt"},
    )


def test_the_library_alone_can_read_the_file(path):
    write_weights(path, STATE, torch.float16, {"epoch": "7"})
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["epoch"] == "7"
        assert file.metadata()["dtype"] == "float16"
        assert file.get_tensor("a.weight").tolist() == STATE["a.weight"].tolist()


def test_equal_weights_give_equal_bytes(path, tmp_path):
    # The library writes metadata in the random order of a hash table.
    digests = set()
    for i in range(8):
        write_weights(tmp_path / str(i), STATE, metadata={"epoch": "7", "a": "1", "z": "2"})
        digests.add(hashlib.sha256((tmp_path / str(i)).read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_are_rounded_and_integers_kept(path, dtype):
    state = {"w": torch.randn(5, generator=torch.Generator().manual_seed(0)), "n": STATE["b"]}
    write_weights(path, state, dtype)
    back = read_weights(path)
    assert back["w"].dtype == dtype
    assert torch.equal(back["w"], state["w"].to(dtype))
    assert back["n"].dtype == torch.int64


def test_float16_keeps_a_weight_to_one_part_in_2048(path):
    # As the format's documentation promises.
    weights = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    write_weights(path, {"w": weights}, torch.float16)
    error = (read_weights(path)["w"].float() - weights).abs()
    assert torch.all(error <= torch.clamp(weights.abs() * 2**-11, min=2**-25))


def test_a_weight_too_large_for_float16_is_not_made_infinite(path):
    with pytest.raises(CheckpointError, match=r"'w' has a weight of magnitude 100000, too large "):
        write_weights(path, {"w": torch.tensor([1.0, -1e5])}, torch.float16)
    assert not path.exists()
    # A run that diverged is still written as it is.
    write_weights(path, {"w": torch.tensor([1.0, float("inf")])}, torch.float16)
    assert read_weights(path)["w"].tolist() == [1.0, float("inf")]


@given(
    st.dictionaries(
        st.text("abc.0_é", min_size=1, max_size=6),
        st.lists(st.floats(width=32), max_size=4),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(["epoch", "x y", "é"]), st.text(max_size=5)),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_save_then_load_is_the_identity(tmp_path_factory, values, metadata):
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    state = {name: torch.tensor(numbers) for name, numbers in values.items()}
    metadata = {key: text.encode("utf-8", "replace").decode() for key, text in metadata.items()}
    write_weights(path, state, metadata=metadata)
    back = read_weights(path)
    assert back.keys() == state.keys()
    for name in state:
        assert torch.equal(back[name], state[name].nan_to_num(nan=7)) or torch.equal(
            back[name].nan_to_num(nan=7), state[name].nan_to_num(nan=7)
        )
    assert metadata.items() <= read_header(path).metadata.items()


# ---------------------------------------------------------------- ties (C4)


def test_a_tensor_with_two_names_is_stored_once_and_comes_back_as_one(path):
    shared = nn.Linear(64, 64)
    model = nn.ModuleDict({"one": shared, "two": shared})
    write_weights(path, model.state_dict(), metadata={"epoch": "7"})
    header = read_header(path)
    assert set(header.shapes) == {"one.weight", "one.bias"}
    assert header.tied == {"two.weight": "one.weight", "two.bias": "one.bias"}
    assert path.stat().st_size < 64 * 65 * 4 + 1000
    state = read_weights(path)
    assert state["one.weight"].data_ptr() == state["two.weight"].data_ptr()
    load_strictly(model, state)


def test_views_of_one_tensor_are_not_ties(path):
    whole = torch.arange(6.0)
    state = {"whole": whole, "left": whole[:3], "turned": whole.view(2, 3).T, "empty": whole[:0]}
    write_weights(path, state | {"empty2": whole[:0]})
    assert not read_header(path).tied
    back = read_weights(path)
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor)


@pytest.mark.parametrize(
    "tied", ["{", "[]", '{"x": "missing"}', '{"x": 1}', '{"w": "w"}', "[" * 100_000]
)
def test_ties_that_lie_are_refused(path, tied):
    raw(path, {"__metadata__": {"tied": tied}, "w": entry()}, bytes(8))
    with pytest.raises(CheckpointError, match="the ties in the metadata do not agree"):
        read_weights(path)


# ---------------------------------------------------------------- damaged and lying files (C5)


def test_a_git_lfs_pointer_is_named(path):
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 12345\n"
    )
    with pytest.raises(CheckpointError, match="this is a Git LFS pointer, not the weights"):
        read_weights(path)
    with pytest.raises(CheckpointError, match="this is a Git LFS pointer, not the weights"):
        read_weights(path.rename(path.with_suffix(".pt")))


def test_a_file_five_bytes_short_says_how_much_is_there(path):
    write_weights(path, STATE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(
        CheckpointError, match=f"cut: {len(whole) - 5} of {len(whole)} bytes; copy it again"
    ):
        read_weights(path)


def test_a_file_cut_anywhere_is_refused(path):
    write_weights(path, STATE, metadata={"epoch": "7"})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="cut"):
            read_weights(path)


def test_an_empty_file_is_cut(path):
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is cut: 0 bytes are not even a header"):
        read_weights(path)


def test_bytes_after_the_last_tensor_are_refused(path):
    raw(path, {"w": entry()}, bytes(11))
    with pytest.raises(CheckpointError, match="3 bytes follow the last tensor"):
        read_weights(path)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 16_000_001])
def test_a_header_that_claims_to_be_huge_allocates_nothing(path, length):
    raw(path, b"{}", length=length)
    with pytest.raises(CheckpointError, match=r"the header claims [\d,]+ bytes, more than"):
        read_weights(path)


@pytest.mark.parametrize(
    "header", [b"{", b'{"a": \xff}', b"{" + b'"a":[' * 100_000, b"{}x", b'{"a": ' + b"9" * 5000]
)
def test_a_header_that_is_not_json_is_refused(path, header):
    with pytest.raises(CheckpointError, match="the header is not valid JSON"):
        read_weights(raw(path, header))


def test_a_name_given_twice_is_refused(path):
    text = json.dumps(entry())
    raw(path, f'{{"w": {text}, "w": {text}}}'.encode(), bytes(8))
    with pytest.raises(CheckpointError, match="a name appears twice"):
        read_weights(path)


@pytest.mark.parametrize("metadata", [[], {"epoch": 7}, "x"])
def test_metadata_that_is_not_strings_is_refused(path, metadata):
    raw(path, {"__metadata__": metadata, "w": entry()}, bytes(8))
    with pytest.raises(CheckpointError, match="__metadata__ is not a table of strings"):
        read_weights(path)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        entry() | {"more": 1},
        entry() | {"shape": "2"},
        entry(shape=(-2,)),
        entry(shape=(True, 2)),
        entry(shape=(2.0,)),
        entry(shape=(2**70,)),
        entry(shape=(1,) * 9),
        entry(offsets=(0,)),
        entry(offsets=(-8, 0)),
        entry() | {"dtype": 32},
    ],
)
def test_a_malformed_entry_is_named(path, bad):
    with pytest.raises(CheckpointError, match="the header's entry for 'w' is malformed"):
        read_weights(raw(path, {"w": bad}, bytes(8)))


def test_a_dtype_that_torch_cannot_widen_is_named(path):
    with pytest.raises(CheckpointError, match="'w' has dtype F4; readable are BOOL, U8"):
        read_weights(raw(path, {"w": entry(dtype="F4")}, bytes(8)))


@pytest.mark.parametrize("shape", [(1,), (3,), (10**9, 10**9), (2**62,) * 8])
def test_a_shape_that_disagrees_with_its_bytes_allocates_nothing(path, shape):
    with pytest.raises(CheckpointError, match=r"gives 'w' 8 bytes, but its shape .* needs"):
        read_weights(raw(path, {"w": entry(shape=shape)}, bytes(8)))


@pytest.mark.parametrize("second", [(0, 8), (4, 12), (12, 20)])
def test_ranges_that_overlap_or_leave_a_gap_are_refused(path, second):
    raw(path, {"v": entry(), "w": entry(offsets=second)}, bytes(20))
    with pytest.raises(CheckpointError, match="byte ranges overlap or leave a gap at 8"):
        read_weights(path)


def test_what_is_something_else_is_refused_with_its_first_bytes(path):
    path.write_text("<!DOCTYPE html><p>Not found")
    with pytest.raises(CheckpointError, match="is not a safetensors file: it starts with b'<!DOC"):
        read_weights(path)


def test_what_the_library_alone_finds_becomes_our_error(path, monkeypatch):
    write_weights(path, STATE)

    def fail(*args, **kwargs):
        raise safetensors.SafetensorError("something\nelse")

    monkeypatch.setattr(safetensors.torch, "load_file", fail)
    with pytest.raises(CheckpointError, match=r"epoch-0007.safetensors cannot be read: something$"):
        read_weights(path)


def test_an_unreadable_file_is_named(path, monkeypatch):
    write_weights(path, STATE)

    def denied(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "open", denied)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        read_weights(path)


def test_a_valid_file_of_our_own_making_is_accepted(path):
    raw(path, {"w": entry(), "e": entry((0, 5), (8, 8)), "s": entry((), (8, 12))}, bytes(12))
    assert {k: tuple(v.shape) for k, v in read_weights(path).items()} == {
        "w": (2,), "e": (0, 5), "s": (),
    }  # fmt: skip


# ---------------------------------------------------------------- pickles (C2, C3, C7)


class Attack:
    """Pickles to a command that leaves a file behind."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("save", [torch.save, lambda o, p: p.write_bytes(pickle.dumps(o))])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: {"state_dict": STATE, "x": a}])
def test_code_in_a_pickle_never_runs(tmp_path, save, suffix, wrap):
    path, trace = tmp_path / f"w{suffix}", tmp_path / "trace"
    save(wrap(Attack(trace)), path)
    with pytest.raises(CheckpointError, match="run code") as caught:
        read_weights(path)
    assert not trace.exists()
    # Never advise to turn the protection off, as the library does.
    assert "weights_only" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_culprit_in_a_pickle_is_named(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"it needs 'torch.nn.modules.linear.Linear'.*state_"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
def test_tensors_beside_harmless_settings_are_read(tmp_path, key):
    extras = {
        "args": argparse.Namespace(lr=0.1, out=pathlib.Path("runs/x")),
        "more": types.SimpleNamespace(a=1),
        "path": pathlib.PurePosixPath("a"),
        "epoch": 3,
    }
    torch.save(STATE if key is None else {key: STATE, **extras}, tmp_path / "w.pt")
    before = set(torch.serialization.get_safe_globals())
    state = read_weights(tmp_path / "w.pt")
    assert state.keys() == STATE.keys()
    assert torch.equal(state["a.weight"], STATE["a.weight"])
    # The extra types are allowed during our reading only.
    assert set(torch.serialization.get_safe_globals()) == before


def test_threads_that_read_at_once_do_not_take_the_types_from_each_other(tmp_path):
    torch.save({"model": STATE, "args": argparse.Namespace(lr=0.1)}, tmp_path / "w.pt")
    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(read_weights, [tmp_path / "w.pt"] * 64))
    assert all(state.keys() == STATE.keys() for state in states)


def test_a_path_of_another_system_does_not_stop_the_tensors(tmp_path):
    class WindowsPath:
        def __reduce__(self):
            return WindowsPath, ("C:\\", "runs")

    WindowsPath.__module__, WindowsPath.__qualname__ = "pathlib", "WindowsPath"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathlib, "WindowsPath", WindowsPath)
        torch.save({"model": STATE, "out": WindowsPath()}, tmp_path / "w.pt")
    assert read_weights(tmp_path / "w.pt").keys() == STATE.keys()


@pytest.mark.parametrize(
    ("content", "inside"),
    [
        ([1], "a list"),
        ({}, "nothing"),
        ({"z": 1}, "'z'"),
        ({"w": torch.ones(1), "n": 1}, "'w', 'n'"),
    ],
)
def test_a_pt_without_a_state_dict_says_what_it_holds(tmp_path, content, inside):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=f"w.pt has no state dict, .*it holds {inside}"):
        read_weights(tmp_path / "w.pt")


def test_weights_saved_on_cuda_open_on_the_cpu(tmp_path):
    path = tmp_path / "w.pt"
    torch.save(STATE, path)
    with zipfile.ZipFile(path) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    # In the pickle, the device is a short string: X + 4-byte length + text.
    on_cpu, on_cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for part, data in parts.items():
            archive.writestr(part, data.replace(on_cpu, on_cuda))
    assert any(on_cpu in data for data in parts.values())
    state = read_weights(path)
    assert state["a.weight"].device.type == "cpu"
    assert torch.equal(state["a.weight"], STATE["a.weight"])


def test_a_compressed_archive_is_not_opened(tmp_path):
    # 100 MB of zeros are 100 kB compressed: torch would unpack them without a word.
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for part in plain.namelist():
            packed.writestr(part, plain.read(part))
    with pytest.raises(CheckpointError, match=r"w\.pt is compressed, which torch.save never does"):
        read_weights(tmp_path / "w.pt")


def test_a_pt_that_is_cut_is_refused(tmp_path):
    torch.save(STATE, tmp_path / "w.pt")
    whole = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(whole[:-5])
    with pytest.raises(
        CheckpointError, match=r"w\.pt is not a whole torch.save archive: it is cut"
    ):
        read_weights(tmp_path / "w.pt")


def test_an_archive_that_torch_cannot_read_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        archive.writestr("x/y", "z")
    with pytest.raises(CheckpointError, match=r"w.pt cannot be read: "):
        read_weights(tmp_path / "w.pt")


# ---------------------------------------------------------------- names (C1)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.module._orig_mod."]
)
def test_wrappers_prefixes_are_dropped_however_nested(prefix):
    state = {prefix + name: tensor for name, tensor in STATE.items()}
    assert clean_names(state) == STATE


def test_a_part_that_was_compiled_alone_gets_its_name_back():
    state = {
        "layers.0._orig_mod.w": STATE["b"],
        "my_orig_mod.w": STATE["b"],
        "a.module.w": STATE["b"],
    }
    assert list(clean_names(state)) == ["layers.0.w", "my_orig_mod.w", "a.module.w"]


def test_two_weights_under_one_name_are_refused():
    with pytest.raises(CheckpointError, match="two weights are both called 'w' once"):
        clean_names({"w": STATE["b"], "module.w": STATE["b"]})


@given(st.lists(st.sampled_from(["module", "_orig_mod", "layers", "0", "w"]), max_size=6))
@settings(max_examples=60, derandomize=True)
def test_cleaning_twice_is_cleaning_once(parts):
    once = clean_names({".".join([*parts, "end"]): STATE["b"]})
    assert clean_names(once) == once


# ---------------------------------------------------------------- into a model


@pytest.fixture
def linear():
    return nn.Linear(3, 2)


def test_half_precision_becomes_the_models_dtype(linear):
    state = {"weight": torch.ones(2, 3, dtype=torch.bfloat16), "bias": torch.ones(2).half()}
    load_strictly(linear, state)
    assert linear.weight.dtype == linear.bias.dtype == torch.float32
    assert torch.all(linear.weight == 1)


def test_missing_and_unknown_weights_are_named(linear):
    with pytest.raises(
        CheckpointError,
        match="epoch 3 does not hold the weights of this configuration: "
        "it lacks 'weight'; the model does not know 'kernel'",
    ):
        load_strictly(linear, {"kernel": torch.ones(2, 3), "bias": torch.ones(2)}, "epoch 3")


def test_many_missing_weights_are_counted():
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(5)))
    with pytest.raises(
        CheckpointError, match=r"it lacks '0.weight', '0.bias', '1.weight' and 7 mo"
    ):
        check_fit(model, {})


def test_a_shape_that_does_not_fit_is_named(linear):
    with pytest.raises(
        CheckpointError, match=r"'weight' has shape \[3, 2\] in the file and \[2, 3\]"
    ):
        load_strictly(linear, {"weight": torch.ones(3, 2), "bias": torch.ones(2)})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_leave_the_model_as_it_was(linear, value):
    before = {name: tensor.clone() for name, tensor in linear.state_dict().items()}
    state = {"weight": torch.ones(2, 3), "bias": torch.tensor([0.0, value])}
    with pytest.raises(
        CheckpointError, match="epoch 3 has non-finite weights: 1 of the 2 numbers of 'bias' are"
    ):
        load_strictly(linear, state, "epoch 3")
    assert all(torch.equal(before[name], linear.state_dict()[name]) for name in before)


def test_a_weight_beyond_float32_counts_as_non_finite(linear):
    state = {"weight": torch.full((2, 3), 1e300, dtype=torch.float64), "bias": torch.ones(2)}
    with pytest.raises(CheckpointError, match="the file has non-finite weights: 6 of the 6"):
        load_strictly(linear, state)


def test_reading_gives_no_warning(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_weights(path, STATE)
        read_weights(path)
