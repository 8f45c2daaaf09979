"""Where a token stands: sinusoidal, learned and rotary positions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


def sinusoidal(
    length: int, d_model: int, offset: int = 0, *, like: Tensor
) -> Float[Tensor, "length d"]:
    """Sines and cosines of positions offset … offset+length-1 (Vaswani et al. 2017, §3.5)."""
    place = torch.arange(offset, offset + length, dtype=torch.float64, device=like.device)
    rate = torch.exp(
        torch.arange(0, d_model, 2, dtype=torch.float64, device=like.device)
        * (-math.log(10000.0) / d_model)
    )
    angle = place[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(like.dtype)


def rotary_angles(
    length: int, d_head: int, offset: int = 0, base: float = 10000.0, *, like: Tensor
) -> tuple[Float[Tensor, "length half"], Float[Tensor, "length half"]]:
    """Cosines and sines that turn channel pair (i, i + e/2) of the token at each position."""
    place = torch.arange(offset, offset + length, dtype=torch.float64, device=like.device)
    half = torch.arange(0, d_head, 2, dtype=torch.float64, device=like.device)
    angle = place[:, None] * base ** (-half / d_head)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate(
    x: Float[Tensor, "batch heads length channels"],
    angles: tuple[Tensor, Tensor],
) -> Float[Tensor, "batch heads length channels"]:
    """Turn every head slice of x by its position (Su et al. 2021, RoFormer, eq. 34).

    The channels may hold several head slices side by side (bilinear aggregation compares a query
    with the whole width); each slice is turned like a head of its own.
    """
    cos, sin = angles
    half = cos.shape[-1]
    slices = x.unflatten(-1, (-1, 2, half))  # [B, h, L, slices, 2, e/2]
    first, second = slices.unbind(-2)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-2)
    return turned.flatten(-3)


class Positions(nn.Module):
    """Adds learned or sinusoidal positions to embeddings; rotary and none add nothing."""

    def __init__(self, kind: str, length: int, d_model: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(length, d_model) * 0.1)

    def forward(
        self, x: Float[Tensor, "batch tokens d"], offset: int = 0
    ) -> Float[Tensor, "batch tokens d"]:
        """Add the positions offset, offset + 1, …"""
        length = x.shape[1]
        if self.kind == "learned":
            return x + self.table[offset : offset + length]
        if self.kind == "sinusoidal":
            return x + sinusoidal(length, x.shape[2], offset, like=x)
        return x
