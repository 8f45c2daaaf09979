"""Cross-subspace tasks: does a metric between heads help where the answer lies between heads?

Of the paper's Figures 12 and 13 only captions are at hand, so the tasks are ours. Tokens x_1 … x_L
are independent N(0, I_d), cut into h heads of e channels as the attention cuts them. A teacher
attends with every head a, to keys of its own head and to keys of the next one, b = a + 1 mod h:

    s^a_ij = τ / √w · ( √(1 − λ) x_i,a D_a x_j,aᵀ  +  √λ x_i,a B_a x_j,bᵀ )
    z_i,a  = Σ_j softmax_j(s^a_ij) x_j,c u_a ,        c = a + 2 mod h

D_a, B_a are random orthogonal on the first w channels of a head and zero elsewhere, u_a is a
random unit vector of e channels, τ = 3. λ is the entanglement: at 0 every head can be answered from
its own channels, at 1 only from those of another head. w is the entangled width. For another token
j the score's variance is τ² at every λ and w, and the values read are not those compared, so only
*where* the answer lies changes with λ, not how much there is of it.

regression       y_i = z_i + σ ε, σ² = 0.05. Bayes-optimal: ŷ = z, with mean squared error σ².
classification   class c_i ~ softmax(κ z_i), of h classes, κ = 8. Bayes-optimal: argmax z_i, right
                 with probability E max softmax(κ z).

Every system is one attention layer (no positions, no mask) and a linear layer, all trained on the
same stream of fresh examples. By construction, a head of RowSum, S_a = X_a R_a Y_aᵀ, compares
channels of head a alone: it can be exact at λ = 0 and at no other λ, whatever f_θ does. MHA and
bilinear aggregation, S_a = X_a M_a,: Yᵀ, can be exact at every λ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from damcha.analysis.progress import Progress
from damcha.attention import MHA, Attention, DAMCHAttention
from damcha.config import MetricConfig
from damcha.errors import InputError

Kind = Literal["regression", "classification"]

SYSTEMS: dict[str, MetricConfig | None] = {
    "MHA": None,
    "DAMCHA": MetricConfig(hidden_dims=(32,)),
    "DAMCHA, w/o f(x)": MetricConfig(generator="static"),
    "DAMCHA, bilinear": MetricConfig(hidden_dims=(32,), aggregation="bilinear"),
    "DAMCHA, bilinear, w/o f(x)": MetricConfig(generator="static", aggregation="bilinear"),
}
"""What is compared; None is MHA. The first is compared with."""

SHARPNESS, NOISE, CERTAINTY = 3.0, 0.05, 8.0
"""τ, σ² and κ."""


@dataclass(frozen=True)
class Size:
    """How large the study is."""

    d_model: int = 32
    n_heads: int = 4
    seq_len: int = 16
    widths: tuple[int, ...] = (2, 8)
    levels: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    seeds: int = 5
    steps: int = 600
    batch: int = 64
    """Sequences in a step."""
    lr: float = 1e-2
    held_out: int = 1024
    """Sequences that systems are measured on."""

    def __post_init__(self) -> None:
        e = self.d_model // self.n_heads
        if self.n_heads < 3 or self.d_model % self.n_heads:
            raise InputError(
                f"size: {self.n_heads} heads of d_model={self.d_model}; three heads or more must "
                "divide it, since a head compares with the next one and reads from the one after"
            )
        if bad := [width for width in self.widths if not 1 <= width <= e]:
            raise InputError(f"size: entangled width {bad[0]} does not fit a head of {e} channels")
        if beyond := [level for level in self.levels if not 0 <= level <= 1]:
            raise InputError(f"size: entanglement {beyond[0]} is not between 0 and 1")
        if self.seeds < 1:
            raise InputError(f"size: {self.seeds} seeds; train at least one")


SMALL = Size()
FULL = Size(
    d_model=128, n_heads=8, seq_len=64, widths=(2, 4, 8, 16),
    levels=tuple(k / 10 for k in range(11)), seeds=10, steps=10_000, batch=128, lr=1e-3,
    held_out=4096,
)  # fmt: skip


class Teacher:
    """The task of one seed, entanglement and width; see the module."""

    def __init__(
        self,
        size: Size,
        width: int,
        level: float,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        h, e = size.n_heads, size.d_model // size.n_heads
        generator = torch.Generator().manual_seed(seed)
        random = torch.randn(2, h, width, width, generator=generator, dtype=torch.float64)
        own, others = torch.linalg.qr(random).Q  # [h, w, w] each
        forms = torch.zeros(h, e, h, e, dtype=torch.float64)  # [a, i, b, j]
        scale = SHARPNESS / math.sqrt(width)
        for a in range(h):
            forms[a, :width, a, :width] = scale * math.sqrt(1 - level) * own[a]
            forms[a, :width, (a + 1) % h, :width] = scale * math.sqrt(level) * others[a]
        reads = torch.zeros(h, h, e, dtype=torch.float64)  # [a, c, i]
        units = torch.randn(h, e, generator=generator, dtype=torch.float64)
        for a in range(h):
            reads[a, (a + 2) % h] = units[a] / units[a].norm()
        self.forms: Float[Tensor, "h e d"] = forms.flatten(2).to(dtype)
        """The metric's rows: s^a_ij = x_i,a forms_a x_jᵀ."""
        self.reads: Float[Tensor, "h d"] = reads.flatten(1).to(dtype)

    def scores(self, x: Float[Tensor, "batch tokens d"]) -> Float[Tensor, "batch h tokens tokens"]:
        """Every head's scores, before its softmax."""
        heads = x.unflatten(-1, (len(self.forms), -1)).transpose(1, 2)
        return heads @ self.forms @ x.unsqueeze(1).mT

    def answer(self, x: Float[Tensor, "batch tokens d"]) -> Float[Tensor, "batch tokens h"]:
        """Return z: what is known of the target."""
        values = (x @ self.reads.T).mT.unsqueeze(-1)  # [B, h, L, 1]
        return (self.scores(x).softmax(-1) @ values).squeeze(-1).mT


class Student(nn.Module):
    """An attention layer and a linear one."""

    def __init__(self, size: Size, metric: MetricConfig | None) -> None:
        super().__init__()
        d, h = size.d_model, size.n_heads
        self.attention: Attention = (
            MHA(d, h, batch_first=True)
            if metric is None
            else DAMCHAttention(d, h, batch_first=True, metric=metric)
        )
        self.head = nn.Linear(d, h)

    def forward(self, x: Float[Tensor, "batch tokens d"]) -> Float[Tensor, "batch tokens h"]:
        """Estimates of z, or logits."""
        return self.head(self.attention(x, x, x, need_weights=False)[0])


@dataclass(frozen=True)
class Cell:
    """One entanglement at one width: values of every system and seed."""

    width: int
    level: float
    values: NDArray[np.float64]
    """[systems, seeds]: mean squared error, or the share right."""
    best: NDArray[np.float64]
    """[seeds]: the Bayes-optimal value."""


def parameters(size: Size) -> dict[str, int]:
    """Weights of each system."""
    return {
        name: sum(p.numel() for p in Student(size, metric).parameters())
        for name, metric in SYSTEMS.items()
    }


def measure(kind: Kind, size: Size, width: int, level: float) -> Iterator[Progress | Cell]:
    """Train every system from every seed on one task; yields Progress, then the Cell.

    Systems of one seed see the same examples in the same order, so they can be compared in pairs.
    """
    what = f"{kind}, width {width}, entanglement {level:g}"
    total, values, best = size.seeds * len(SYSTEMS), [], []
    for seed in range(size.seeds):
        teacher = Teacher(size, width, level, seed)
        generator = torch.Generator().manual_seed(10_000 + seed)
        test = torch.randn(size.held_out, size.seq_len, size.d_model, generator=generator)
        best.append(_value(kind, teacher.answer(test), teacher.answer(test)))
        for k, metric in enumerate(SYSTEMS.values()):
            yield Progress(seed * len(SYSTEMS) + k, total, what)
            student = _trained(kind, size, teacher, metric, seed)
            with torch.no_grad():
                values.append(_value(kind, student(test), teacher.answer(test)))
    table = np.array(values).reshape(size.seeds, len(SYSTEMS)).T
    yield Cell(width, level, table, np.array(best))


def _trained(
    kind: Kind, size: Size, teacher: Teacher, metric: MetricConfig | None, seed: int
) -> Student:
    generator = torch.Generator().manual_seed(20_000 + seed)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        student = Student(size, metric)
    optimiser = torch.optim.Adam(student.parameters(), size.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, size.lr, size.steps, pct_start=0.1)
    for _ in range(size.steps):
        x = torch.randn(size.batch, size.seq_len, size.d_model, generator=generator)
        z = teacher.answer(x)
        if kind == "regression":
            noise = torch.randn(z.shape, generator=generator)
            loss = nn.functional.mse_loss(student(x), z + math.sqrt(NOISE) * noise)
        else:
            classes = torch.multinomial(
                (CERTAINTY * z).softmax(-1).flatten(0, 1), 1, generator=generator
            )
            loss = nn.functional.cross_entropy(student(x).flatten(0, 1), classes[:, 0])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return student.eval()


def _value(kind: Kind, output: Tensor, z: Tensor) -> float:
    """Expected mean squared error or share right, over targets that are drawn given z."""
    if kind == "regression":
        return float((output - z).double().square().mean()) + NOISE
    right = (CERTAINTY * z).softmax(-1).gather(-1, output.argmax(-1, keepdim=True))
    return float(right.double().mean())
