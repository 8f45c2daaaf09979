"""Version-1 files: their models cannot be run, but their M can be shown."""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from damcha.checkpoint.authors.read import OLD, checked
from damcha.checkpoint.files import atomic_write, regular_file
from damcha.checkpoint.weights import MAX_FILE_BYTES, read_pt
from damcha.errors import CheckpointError


@dataclass(frozen=True, eq=False)
class OldMetrics:
    """The metrics of a version-1 file, whose model cannot be run."""

    metrics: npt.NDArray[np.float32]
    """[layers, d, d]; the same for every input."""
    n_heads: int | None
    """None where the file does not tell."""
    why: str
    """Why the model cannot be run, in a sentence."""
    name: str
    """Of the file."""
    digest: str
    """SHA-256 of the file."""


def read_old_metrics(path: str | Path) -> OldMetrics:
    """Return M of every layer of a version-1 file: f_θ of a learned constant, or a fixed M.

    Block scales of the diagonal and ``free_M`` are not stored; their defaults are assumed.

    Raises
    ------
    CheckpointError
        If it is not a version-1 file with a metric.
    """
    content, file = read_pt(path), Path(path).name
    if not isinstance(content, dict) or "format_version" in content:
        raise CheckpointError(f"{file} is not a version-1 checkpoint of the authors' code")
    state = checked(file, "model_state_dict", content.get("model_state_dict")).left
    options = content.get("off_diag_params", {})
    layers = sorted(
        {int(m[1]) for name in state if (m := re.match(r"decoder\.layers\.(\d{1,4})\.", name))}
    )
    found, heads = [], None
    for i in layers:
        own = f"decoder.layers.{i}.self_attn."
        prefixes = ("decoder.shared_mlp_module.", f"{own}_own_mlp.")
        prefix = next((p for p in prefixes if f"{p}input_embedding" in state), None)
        try:
            if prefix is not None:
                generator = {
                    name.removeprefix(prefix): value.float()
                    for name, value in state.items()
                    if name.startswith(prefix)
                }
                heads = len(generator["diag_block_weights"])
                found.append(_old_metric(generator, options, i))
            elif f"{own}M0" in state and f"{own}W_q.weight" not in state:
                found.append(state[f"{own}M0"].float())
        except (KeyError, RuntimeError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = str(error).split("\n")[0][:80]
            raise CheckpointError(f"{file}: M of layer {i} cannot be made: {reason}") from None
    if not found or len({metric.shape for metric in found}) != 1 or found[0].dim() != 2:
        raise CheckpointError(f"{file} is of version 1 and holds no metric M")
    metrics = torch.stack(found)
    if not metrics.isfinite().all():
        raise CheckpointError(f"{file} has a non-finite metric M")
    with regular_file(path, MAX_FILE_BYTES).open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return OldMetrics(metrics.numpy(), heads, OLD, file, digest)


def _old_metric(generator: Mapping[str, Tensor], options: Any, layer: int) -> Tensor:
    x = generator["input_embedding"]
    d, h = len(x), len(generator["diag_block_weights"])
    numbers = sorted(int(n.split(".")[1]) for n in generator if re.match(r"mlp\.\d+\.weight", n))
    for number in numbers:
        x = x if number == numbers[0] else torch.nn.functional.gelu(x)
        x = torch.nn.functional.linear(
            x, generator[f"mlp.{number}.weight"], generator[f"mlp.{number}.bias"]
        )
    if len(x) != d * d:  # compact
        u, v = x.unflatten(0, (2, d, -1))
        metric = u @ v.T / math.sqrt(u.shape[1])
    else:
        own = generator["diag_mask"]
        raw = x.unflatten(0, (d, d))
        off = float(options.get("off_diag_scale", 0.5))
        if "off_diag_alpha" in generator:
            parts = raw.unflatten(0, (h, -1)).unflatten(2, (h, -1))  # [h, e, h, e]
            blocks = torch.stack([parts[a, :, a] for a in range(h)])
            mixed = torch.einsum("abk,kij->aibj", generator["off_diag_alpha"], blocks)
            other = mixed.flatten(2).flatten(0, 1)
        else:
            other = generator["B"].reshape(d, d) if "B" in generator else raw
        metric = raw * own + off * other * (1 - own)
    if "layer_bias_U" in generator:
        scales = generator["layer_scales"][layer]
        metric = metric + (generator["layer_bias_U"] * scales) @ generator["layer_bias_V"].T
    return metric


def write_old_metrics(path: str | Path, out: str | Path) -> OldMetrics:
    """Write M of a version-1 file as .npz: ``metrics`` [layers, d, d], ``n_heads`` (0: unknown)."""
    old, buffer = read_old_metrics(path), io.BytesIO()
    np.savez(buffer, allow_pickle=False, metrics=old.metrics, n_heads=old.n_heads or 0)
    atomic_write(out, buffer.getvalue())
    return old
