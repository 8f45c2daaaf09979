"""MHA: its weights are those of ``torch.nn.MultiheadAttention`` (numbers: test_interface.py)."""

import pytest
import torch
from torch import nn

from damcha.attention import MHA

OPTIONS = [
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"kdim": 5},
    {"vdim": 6, "bias": False},
    {"kdim": 5, "vdim": 6, "add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_state_dicts_are_exchanged_both_ways(options, randomise):
    theirs, ours = nn.MultiheadAttention(8, 2, **options), MHA(8, 2, **options)
    shapes = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == shapes
    randomise(theirs)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    randomise(ours, seed=1)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    for name, value in ours.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value)


def test_state_dict_names():
    assert list(MHA(8, 2).state_dict()) == [
        "in_proj_bias", "in_proj_weight", "out_proj.weight", "out_proj.bias",
    ]  # fmt: skip


def test_biases_start_at_zero_and_weights_do_not():
    layer = MHA(8, 2)
    assert (layer.in_proj_bias == 0).all() and (layer.out_proj.bias == 0).all()
    assert layer.in_proj_weight.std() > 0.1


def test_device_and_dtype():
    layer = MHA(8, 2, device="meta", dtype=torch.bfloat16, add_bias_kv=True, kdim=4)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.bfloat16)}
