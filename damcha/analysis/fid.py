"""Fréchet inception distance (Heusel et al. 2017), with a feature network that is always named.

Two distances can be compared only if they are of the same features. So features carry the name and
the digest of their network (:class:`Features`), and :func:`distance` refuses to mix them. There are

- Inception-v3, of which the published figures are, from the user's own weights file:
  :func:`inception`. torch-fidelity's weights (the usual ones of FID) and torchvision's differ;
- a small classifier trained here on the run's own data: :func:`trained_network`. Its distances
  order models on that data set and mean nothing beside published ones.
"""

from __future__ import annotations

import hashlib
import importlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.linalg
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from damcha.analysis.progress import Progress
from damcha.checkpoint.files import regular_file
from damcha.checkpoint.weights import load_strictly, read_weights, write_weights
from damcha.config import DataConfig
from damcha.data.datasets import ImageData, Split, load_dataset
from damcha.data.evaluation import EvaluationSet, image_tensor, spread
from damcha.errors import CheckpointError, InputError

Pictures = UInt8[np.ndarray, "n height width c"]

STEPS, BATCH, RATE = 800, 64, 2e-3
MOST_LEARNED = 10_000
"""Pictures that the small network is trained on."""
SIDE = 32
"""Larger pictures are averaged down to this side before the small network."""
MAX_INCEPTION_BYTES = 500_000_000


@dataclass(frozen=True, eq=False)
class FeatureNetwork:
    """What turns pictures into features."""

    name: str
    """For a person, e.g. "Inception-v3 of torch-fidelity"."""
    digest: str
    """SHA-256 of its weights, in hexadecimal."""
    width: int
    apply: Callable[[Pictures], Float[np.ndarray, "n width"]]
    accuracy: float | None = None
    """Of a network trained here: the share right of pictures held out of its training."""


@dataclass(frozen=True, eq=False)
class Features:
    """Features of some pictures, and the network that they are of."""

    values: Float[np.ndarray, "n width"]
    network: str
    digest: str

    def __getitem__(self, places: NDArray[np.int64]) -> Features:
        """Features of some of the pictures."""
        return replace(self, values=self.values[places])


# ---------------------------------------------------------------- the distance


def frechet(
    mean1: Float[np.ndarray, " f"],
    cov1: Float[np.ndarray, "f f"],
    mean2: Float[np.ndarray, " f"],
    cov2: Float[np.ndarray, "f f"],
) -> float:
    """Squared Fréchet distance of two Gaussians: ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½).

    The trace of the root is that of the symmetric (Σ₁^½ Σ₂ Σ₁^½)^½, so no complex numbers arise;
    without full rank it is taken in the span of Σ₁ alone. In float64.
    """
    values, vectors = scipy.linalg.eigh(cov1)
    kept = values > _noise(values)
    root = vectors[:, kept] * np.sqrt(values[kept])
    inner = scipy.linalg.eigvalsh(root.T @ cov2 @ root) if kept.any() else values[kept]
    cross = np.sqrt(inner[inner > _noise(inner)]).sum()
    gap = float(((mean1 - mean2) ** 2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * cross)
    return max(gap, 0.0)  # rounding can leave −1e-15 for equal sets


def _noise(eigenvalues: NDArray[np.float64]) -> float:
    """Below this an eigenvalue is rounding alone, and its root would be a number that counts."""
    largest = float(np.abs(eigenvalues).max(initial=0.0))
    return len(eigenvalues) * float(np.finfo(np.float64).eps) * largest


def distance(first: Features, second: Features) -> float:
    """Fréchet distance of Gaussians fitted to two sets of features (covariance over n − 1).

    Raises
    ------
    InputError
        If the features are of different networks, or a set has fewer than two.
    """
    if (first.network, first.digest) != (second.network, second.digest):
        raise InputError(
            f"fid: features of '{first.network}' ({first.digest[:8]}) and of '{second.network}' "
            f"({second.digest[:8]}) cannot be compared; use one network for both"
        )
    fewest = min(len(first.values), len(second.values))
    if fewest < 2:
        raise InputError(f"fid: a covariance needs 2 pictures or more, not {fewest}; raise n")
    (a, b), (c, d) = _moments(first.values), _moments(second.values)
    return frechet(a, b, c, d)


def _moments(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values = values.astype(np.float64)
    return values.mean(0), np.atleast_2d(np.cov(values, rowvar=False))


def features(
    network: FeatureNetwork, pictures: Pictures, what: str = "features", size: int = 64
) -> Iterator[Progress | Features]:
    """Features of pictures, `size` at a time; yields Progress, then the Features."""
    found = []
    for first in range(0, len(pictures), size):
        yield Progress(first, len(pictures), what)
        found.append(network.apply(pictures[first : first + size]))
    values = np.concatenate(found).astype(np.float64)
    values.setflags(write=False)
    yield Features(values, network.name, network.digest)


# ---------------------------------------------------------------- Inception


def inception(path: str | Path) -> FeatureNetwork:
    """Inception-v3's 2048 pooled features, from a weights file of torch-fidelity or torchvision.

    Raises
    ------
    InputError
        If the file holds something else, or the package that knows its network is missing.
    CheckpointError
        If the file is missing, or would need a pickle to be run.
    """
    path = Path(path)
    real = regular_file(path.resolve(), MAX_INCEPTION_BYTES)
    state = _inception_weights(real)
    with real.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    head = state.get("fc.weight")
    rows = 0 if head is None or head.dim() != 2 or head.shape[1] != 2048 else len(head)
    if rows == 1008:
        return FeatureNetwork("Inception-v3 of torch-fidelity", digest, 2048, _fidelity(state))
    if rows == 1000:
        return FeatureNetwork("Inception-v3 of torchvision", digest, 2048, _torchvision(state))
    raise InputError(
        f"inception: {path.name} is no Inception-v3 (its 'fc.weight' should be [1008, 2048], as "
        "torch-fidelity's, or [1000, 2048], as torchvision's); give that network's weights"
    )


def _inception_weights(real: Path) -> dict[str, Tensor]:
    if real.suffix == ".safetensors" or zipfile.is_zipfile(real):
        return read_weights(real)
    try:  # the published file is older than torch's archives, which is all that read_pt takes
        state = torch.load(real, map_location="cpu", weights_only=True)  # noqa: TID251
    except Exception:
        state = None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(
            f"{real.name} is not a file of weights that opens without running code; give "
            "Inception-v3's weights as torch-fidelity or torchvision publish them"
        )
    return state


def _package(name: str, shown: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"inception: this file holds {shown}'s Inception-v3, and the package {shown} is not "
            f"installed; run 'pip install {shown}', or leave --inception out for a small network "
            "trained here"
        ) from None
    except RuntimeError as error:  # torchvision that was built for another torch
        raise InputError(
            f"inception: the package {shown} is installed but does not import ({error}); install "
            "the version that belongs to this torch"
        ) from None


def _colours(pictures: Pictures) -> Tensor:
    """uint8 [B, H, W, 1 or 3] → uint8 [B, 3, H, W]."""
    images = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2)
    return images.expand(-1, 3, -1, -1).contiguous()


def _fidelity(state: dict[str, Tensor]) -> Callable[[Pictures], NDArray[np.float64]]:
    package = _package("torch_fidelity.feature_extractor_inceptionv3", "torch-fidelity")
    # The package opens its file with weights_only=False, which could run code: it gets a copy that
    # holds nothing but the tensors read above.
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "inception.pt"
        torch.save(state, clean)
        kind = package.FeatureExtractorInceptionV3  # type: ignore[attr-defined]
        network = kind("inception-v3-compat", ["2048"], feature_extractor_weights_path=str(clean))
    network.eval()

    @torch.no_grad()
    def apply(pictures: Pictures) -> NDArray[np.float64]:
        return network(_colours(pictures))[0].double().numpy()

    return apply


def _torchvision(state: dict[str, Tensor]) -> Callable[[Pictures], NDArray[np.float64]]:
    package = _package("torchvision.models", "torchvision")
    network = package.inception_v3(  # type: ignore[attr-defined]
        weights=None, init_weights=False, aux_logits=True, transform_input=False
    )
    load_strictly(network, state, "the Inception file")
    network.fc = nn.Identity()
    network.eval()

    @torch.no_grad()
    def apply(pictures: Pictures) -> NDArray[np.float64]:
        # These weights are TensorFlow's, which takes pixels in [-1, 1].
        x = _colours(pictures).float() / 127.5 - 1
        x = F.interpolate(x, (299, 299), mode="bilinear", antialias=True)
        return network(x).double().numpy()

    return apply


# ---------------------------------------------------------------- a small network trained here


class SmallNetwork(nn.Module):
    """Three convolutions and a mean: 64 features, and a linear classifier on them."""

    WIDTH = 64

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())
            for before, after in ((channels, 16), (16, 32), (32, self.WIDTH))
        )
        self.head = nn.Linear(self.WIDTH, n_classes)

    def features(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch 64"]:
        """Features of pictures in [-1, 1]."""
        x = _averaged(images)
        for k, block in enumerate(self.blocks):
            if k > 0 and min(x.shape[-2:]) > 1:
                x = F.max_pool2d(x, 2)
            x = block(x)
        return x.mean((-2, -1))

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch classes"]:
        """Class logits."""
        return self.head(self.features(images))


@dataclass(frozen=True, eq=False)
class _Lessons:
    """Pictures to learn from; every tenth is held out."""

    images: Float[Tensor, "n c h w"]
    labels: NDArray[np.int64]
    part: str
    """What they are, for the network's name."""

    @property
    def held_out(self) -> NDArray[np.bool_]:
        return np.arange(len(self.labels)) % 10 == 9

    def digest(self) -> str:
        found = hashlib.sha256(self.labels.tobytes())
        found.update(self.images.numpy().tobytes())
        return found.hexdigest()


def trained_network(
    data: EvaluationSet,
    config: DataConfig,
    split: Split = "test",
    folder: str | Path | None = None,
    *,
    seed: int = 0,
    steps: int = STEPS,
) -> Iterator[Progress | FeatureNetwork]:
    """Train a small classifier on a data set, or read it if it was; yields Progress on the way.

    It learns from up to 10,000 pictures of the training part, or, where only the part that is
    evaluated is at hand, from its other pictures. A tenth of them is held out for its accuracy.
    The weights depend on the pictures, `seed` and `steps` alone.

    Parameters
    ----------
    data, config, split
        The pictures to be evaluated, of which none is learned, and where they are from.
    folder
        Where to keep the network (``features-….safetensors``); nowhere by default.

    Raises
    ------
    InputError
        If the data have no classes to learn, or too few pictures.
    """
    lessons = _lessons(data, config, split)
    classes = np.unique(lessons.labels)
    if len(classes) < 2 or len(lessons.labels) < 20:
        raise InputError(
            f"fid: {len(lessons.labels)} pictures beside the evaluated ones, of {len(classes)} "
            "classes, are too few to train a feature network; lower n, or give Inception's weights"
        )
    path = None
    if folder is not None:
        path = Path(folder) / f"features-{lessons.digest()[:16]}-{seed}-{steps}.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SmallNetwork(config.channels, int(classes.max()) + 1)
    if path is not None and path.exists():
        load_strictly(network, read_weights(path), path.name)
    else:
        yield from _train(network, lessons, seed, steps)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_weights(path, network.state_dict())
    network.eval().requires_grad_(False)
    weights = b"".join(weight.numpy().tobytes() for weight in network.state_dict().values())
    yield FeatureNetwork(
        name=f"small CNN trained on {config.dataset}, {lessons.part} (seed {seed}, {steps} steps)",
        digest=hashlib.sha256(weights).hexdigest(),
        width=SmallNetwork.WIDTH,
        apply=lambda pictures: network.features(image_tensor(pictures)).double().numpy(),
        accuracy=_accuracy(network, lessons),
    )


def _lessons(data: EvaluationSet, config: DataConfig, split: Split) -> _Lessons:
    found, part = data.data, "train"
    if not isinstance(found, ImageData):
        raise InputError("fid: text has no pictures to learn features of")
    places = np.empty(0, np.int64)
    if split != "train":
        try:
            train = load_dataset(config, data.root, "train")
            assert isinstance(train, ImageData)
            found, places = train, spread(train, config.seq_len, MOST_LEARNED)
        except InputError:  # what ships is the test part alone
            pass
    if not len(places):
        part = f"{split} without the evaluated pictures"
        rest = np.setdiff1d(np.arange(len(found.labels)), data.places)
        even = np.linspace(0, len(rest) - 1, min(len(rest), MOST_LEARNED))
        places = rest[even.astype(np.int64)]
    images = [
        _averaged(image_tensor(found.images[places[first : first + 256]]))
        for first in range(0, len(places), 256)
    ]
    empty = torch.empty(0, config.channels, 1, 1)
    return _Lessons(torch.cat(images) if images else empty, found.labels[places], part)


def _train(network: SmallNetwork, lessons: _Lessons, seed: int, steps: int) -> Iterator[Progress]:
    """Adam with a falling rate on random batches."""
    learned = np.flatnonzero(~lessons.held_out)
    labels = torch.from_numpy(lessons.labels)
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    for step in range(steps):
        if step % 20 == 0:
            yield Progress(step, steps, "steps of the feature network")
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        picked = torch.from_numpy(rng.choice(learned, BATCH))
        # A consumer of this generator may have gradients off.
        with torch.enable_grad():
            loss = F.cross_entropy(network(lessons.images[picked]), labels[picked])
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()


@torch.no_grad()
def _accuracy(network: SmallNetwork, lessons: _Lessons) -> float:
    held_out = torch.from_numpy(np.flatnonzero(lessons.held_out))
    answers = [network(lessons.images[part]).argmax(1) for part in held_out.split(256)]
    return float((torch.cat(answers).numpy() == lessons.labels[held_out.numpy()]).mean())


def _averaged(images: Tensor) -> Tensor:
    """Larger pictures averaged down to 32 × 32."""
    return F.adaptive_avg_pool2d(images, SIDE) if max(images.shape[-2:]) > SIDE else images
