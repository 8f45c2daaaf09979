"""A run's results on held-out examples, as the paper reports them (Tables 1 and 5, Figures 3–7).

    scores(model, set) → Scores ──────────────┐
    pictures(model, set) → Fid (fid.py) ──────┴→ Report → evaluation.json, evaluation.npz, a table

======================  ===========================================================================
images                  ``mse``: mean squared error of pixels in [-1, 1], over what the loss sees
language models         ``nll``: nats a byte; bits a byte and perplexity are functions of it
pairs                   ``nll``: nats a symbol of the target; perplexity; and of the targets that
                        the model writes itself, BLEU, chrF and BARTScore
classifiers             ``nll``: nats; ``top1``, ``top5``: whether the class is among the likeliest
======================  ===========================================================================
"""

from __future__ import annotations

import io
import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray

from damcha import __version__
from damcha.analysis.fid import FeatureNetwork, distance, features
from damcha.analysis.generation import Written, write_targets
from damcha.analysis.progress import Progress, relayed
from damcha.analysis.summary import TOP, interval, lowest, resamples
from damcha.analysis.text_scores import BartScore, Scorer, TextScore, bart_score, bleu, chrf
from damcha.checkpoint.files import atomic_write
from damcha.data.evaluation import EvaluationSet
from damcha.errors import InputError
from damcha.model import (
    ByteLM,
    ImageAutoregressor,
    ImageClassifier,
    ImageReconstructor,
    PairLM,
    TaskModel,
    unpatchify,
)

Outputs = Literal["predictions", "completion", "filled"]
OUTPUTS: dict[Outputs, str] = {
    "predictions": "each patch predicted from the true patches before it, as the loss sees them",
    "completion": "the upper half as given, the lower half generated patch by patch",
    "filled": "hidden patches as predicted, the others as given",
}
"""What pictures of a model are: name → meaning."""


@dataclass(frozen=True)
class Measure:
    """One measure over all examples."""

    name: str
    mean: float
    interval: tuple[float, float]
    """95 % percentile bootstrap interval of the mean, over examples."""
    q25: float | None = None
    q75: float | None = None
    top50: float | None = None
    """Mean of the 50 examples of lowest loss; None, as the quartiles, for shares."""


@dataclass(frozen=True)
class Fid:
    """Fréchet distances of a model's pictures to the originals; only of one network comparable."""

    network: str
    network_digest: str
    network_accuracy: float | None
    """Of a network trained here, on held-out pictures."""
    width: int
    outputs: Outputs
    n: int
    fid: float
    top: int
    """50, or n where that is less."""
    fid_top: float
    """Of the `top` pictures of lowest squared error, to the originals of the same examples."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Pictures:
    """What a model makes of the examples, and how far off it is."""

    made: UInt8[np.ndarray, "n height width c"]
    originals: UInt8[np.ndarray, "n height width c"]
    error: Float[np.ndarray, " n"]
    """Mean squared error of the whole picture before rounding, pixels in [-1, 1]."""
    outputs: Outputs


@dataclass(frozen=True, eq=False)
class Report:
    """A run's results on held-out examples."""

    task: str
    values: Mapping[str, Float[np.ndarray, " n"]]
    """Per-example numbers, by measure."""
    places: Int[np.ndarray, " n"]
    """Which examples of the data set they are."""
    measures: tuple[Measure, ...]
    fid: tuple[Fid, ...] = ()
    text: tuple[TextScore, ...] = ()
    """Of what a model of pairs writes for each source."""
    bart: BartScore | None = None
    written: tuple[Written, ...] = ()
    provenance: Mapping[str, object] = field(default_factory=dict)
    """Run, weights, data, seed, versions: enough to make it again."""

    @property
    def loss(self) -> Float[np.ndarray, " n"]:
        """The task's loss of each example: what distribution figures show."""
        return next(iter(self.values.values()))


# ---------------------------------------------------------------- scores


@torch.no_grad()
def scores(
    model: TaskModel, data: EvaluationSet, size: int = 64
) -> Iterator[Progress | dict[str, NDArray[np.float64]]]:
    """Measure every example, `size` a forward pass; yields Progress, then name → [n]."""
    device = next(model.parameters()).device
    found: dict[str, list[NDArray[np.float64]]] = {}
    done = 0
    for inputs, targets in data.batches(size):
        yield Progress(done, len(data), "held-out examples")
        inputs, targets = inputs.to(device), targets.to(device)
        loss = model.score(inputs, targets)["loss"]
        picture = isinstance(model, ImageAutoregressor | ImageReconstructor)
        parts = {"mse" if picture else "nll": loss}
        if isinstance(model, ImageClassifier):
            logits = model(inputs)
            for k in (1, 5):
                if logits.shape[1] > k:
                    right = logits.topk(k, 1).indices == targets[:, None]
                    parts[f"top{k}"] = right.any(1)
        for name, part in parts.items():
            found.setdefault(name, []).append(part.cpu().double().numpy())
        done += len(inputs)
    yield {name: _frozen(np.concatenate(parts)) for name, parts in found.items()}


def measures(
    values: Mapping[str, NDArray[np.float64]], unit: str = "", seed: int = 0
) -> tuple[Measure, ...]:
    """Mean with its bootstrap interval, quartiles, Top-50; of a text's `unit` perplexity, too.

    Perplexity is that of the whole set, exp of the mean nats, and so are its other numbers: exp of
    those of the nats. Bits are stated a byte; subwords are of no fixed length.

    Raises
    ------
    InputError
        If a number is not finite.
    """
    counts = resamples(len(next(iter(values.values()))), seed)
    found = []
    for name, numbers in values.items():
        bad = int((~np.isfinite(numbers)).sum())
        if bad:
            raise InputError(
                f"{name}: {bad:,} of {len(numbers):,} examples are NaN or infinite; "
                "choose another epoch"
            )
        measure = Measure(name, float(numbers.mean()), interval(numbers, counts))
        if not name.startswith("top"):
            q25, q75 = np.quantile(numbers, (0.25, 0.75))
            best = float(numbers[lowest(numbers)].mean())
            measure = Measure(name, measure.mean, measure.interval, float(q25), float(q75), best)
        found.append(measure)
    if unit:
        nll = found[0]
        if unit == "byte":
            found.append(_mapped(nll, "bits_per_byte", lambda nats: nats / math.log(2)))
        found.append(_mapped(nll, f"perplexity_per_{unit}", math.exp))
    return tuple(found)


def _mapped(measure: Measure, name: str, f: Callable[[float], float]) -> Measure:
    low, high = measure.interval
    assert measure.q25 is not None and measure.q75 is not None and measure.top50 is not None
    return Measure(
        name, f(measure.mean), (f(low), f(high)), f(measure.q25), f(measure.q75), f(measure.top50)
    )


# ---------------------------------------------------------------- pictures


def outputs_of(model: TaskModel, outputs: str | None = None) -> Outputs:
    """The kind of pictures that a model makes, the usual one by default.

    Raises
    ------
    InputError
        If the model makes none, or none of that kind.
    """
    kinds: tuple[Outputs, ...] = ()
    if isinstance(model, ImageAutoregressor):
        kinds = ("predictions", "completion")
    elif isinstance(model, ImageReconstructor):
        kinds = ("filled",)
    if not kinds:
        raise InputError(
            f"fid: a run of '{model.config.task}' makes no pictures; choose one of "
            "image_autoregression or image_reconstruction"
        )
    if outputs is None:
        return kinds[0]
    for kind in kinds:
        if kind == outputs:
            return kind
    raise InputError(
        f"outputs: a run of '{model.config.task}' has no '{outputs}'; choose {' or '.join(kinds)}"
    )


@torch.no_grad()
def pictures(
    model: TaskModel, data: EvaluationSet, outputs: str | None = None, size: int = 64
) -> Iterator[Progress | Pictures]:
    """What a model makes of every example; yields Progress, then the Pictures.

    Raises
    ------
    InputError
        As :func:`outputs_of`.
    """
    kind = outputs_of(model, outputs)
    device = next(model.parameters()).device
    config = model.config.data
    made, originals, errors = [], [], []
    done = 0
    for inputs, _ in data.batches(size):
        yield Progress(done, len(data), kind)
        inputs = inputs.to(device)
        images = unpatchify(_patches(model, inputs, kind), config.patch_size, config.channels)
        errors.append(((images - inputs) ** 2).flatten(1).mean(1).cpu().double().numpy())
        made.append(_pixels(images))
        originals.append(_pixels(inputs))
        done += len(inputs)
    yield Pictures(
        np.concatenate(made), np.concatenate(originals), _frozen(np.concatenate(errors)), kind
    )


def _patches(model: TaskModel, inputs: torch.Tensor, kind: Outputs) -> torch.Tensor:
    if isinstance(model, ImageReconstructor):
        hidden = model.default_mask(len(inputs), inputs.device)[..., None]
        return torch.where(hidden, model(inputs), model.patches(inputs))
    assert isinstance(model, ImageAutoregressor)
    if kind == "predictions":
        return model(inputs)
    side = model.config.data.image_size // model.config.data.patch_size
    return model.generate(model.patches(inputs)[:, : (side + 1) // 2 * side])


def _pixels(images: torch.Tensor) -> NDArray[np.uint8]:
    """[-1, 1] → what a file of the picture would hold: FID is of pictures that can be seen."""
    pixels = ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def fid(found: Pictures, network: FeatureNetwork) -> Iterator[Progress | Fid]:
    """FID of all pictures, and of the 50 of lowest error; yields Progress, then the Fid.

    Raises
    ------
    InputError
        If there are fewer than two pictures.
    """
    made = yield from relayed(features(network, found.made, "features of outputs"))
    originals = yield from relayed(features(network, found.originals, "features of originals"))
    n, top = len(found.made), min(TOP, len(found.made))
    best = lowest(found.error, top)
    notes = tuple(
        f"{count} pictures have covariances of rank {count - 1} at most for {network.width} "
        f"features: {name} is biased and comparable at the same number only"
        for name, count in (("FID", n), (f"FID@Top-{top}", top))
        if count <= network.width
    )
    if n < TOP:
        notes += (f"there are only {n} pictures: Top-{TOP} is all of them",)
    yield Fid(
        network=network.name,
        network_digest=network.digest,
        network_accuracy=network.accuracy,
        width=network.width,
        outputs=found.outputs,
        n=n,
        fid=distance(made, originals),
        top=top,
        fid_top=distance(made[best], originals[best]),
        notes=notes,
    )


# ---------------------------------------------------------------- the report


def evaluate(
    model: TaskModel,
    data: EvaluationSet,
    *,
    network: FeatureNetwork | None = None,
    outputs: tuple[str | None, ...] = (None,),
    beams: int = 1,
    bart: Scorer | None = None,
    seed: int = 0,
    provenance: Mapping[str, object] | None = None,
) -> Iterator[Progress | Report]:
    """Everything that is known of a model on held-out examples; yields Progress, then the Report.

    Parameters
    ----------
    network
        What FID is measured with; none is measured without.
    outputs
        Which pictures FID is of, see :data:`OUTPUTS`; None for the model's usual ones.
    beams, bart
        How the targets of pairs are written (1: greedily), and what BARTScore is taken with.
    seed
        Of the bootstrap.
    provenance
        Further facts to keep, of the run above all.
    """
    values = yield from relayed(scores(model, data))
    distances = []
    if network is not None:
        for kind in outputs:
            made = yield from relayed(pictures(model, data, kind))
            distances.append((yield from relayed(fid(made, network))))
    written: tuple[Written, ...] = ()
    text: tuple[TextScore, ...] = ()
    of_bart = None
    if isinstance(model, PairLM):
        written = yield from relayed(write_targets(model, data, beams))
        hypotheses = [one.hypothesis for one in written]
        references = [one.references for one in written]
        text = (bleu(hypotheses, references), chrf(hypotheses, references))
        if bart is not None:
            yield Progress(0, 1, "BARTScore")
            of_bart = bart_score(hypotheses, references, bart)
    unit = model.config.symbol if isinstance(model, ByteLM) else ""
    versions = {
        "damcha": __version__,
        "python": platform.python_version(),
        **{package.__name__: str(package.__version__) for package in (torch, np, scipy)},
    }
    yield Report(
        task=model.config.task,
        values=values,
        places=data.places,
        measures=measures(values, unit, seed),
        fid=tuple(distances),
        text=text,
        bart=of_bart,
        written=written,
        provenance={
            **(provenance or {}),
            "data": data.name,
            "data_digest": data.digest,
            "n": len(data),
            "seed": seed,
            **({"beams": beams} if written else {}),
            "versions": versions,
        },
    )


def write_report(report: Report, folder: str | Path) -> tuple[Path, ...]:
    """Write evaluation.json and evaluation.npz (per-example values); each whole or not at all.

    What a model of pairs wrote goes to written.jsonl, a source a line.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    numbers, facts = folder / "evaluation.npz", folder / "evaluation.json"
    buffer = io.BytesIO()
    own = {one.name: one.examples for one in report.text if one.examples is not None}
    if report.bart is not None:
        own["bart_score"] = report.bart.f
    np.savez(buffer, allow_pickle=False, places=report.places, **report.values, **own)
    atomic_write(numbers, buffer.getvalue())
    content = {
        "format": "damcha-evaluation",
        "format_version": 1,
        "task": report.task,
        "measures": [asdict(measure) for measure in report.measures],
        "fid": [asdict(one) for one in report.fid],
        "text": [
            {"name": one.name, "corpus": one.corpus, "signature": one.signature}
            for one in report.text
        ],
        "bart_score": None if report.bart is None else float(report.bart.f.mean()),
        "provenance": dict(report.provenance),
        "per_example": numbers.name,
    }
    atomic_write(facts, json.dumps(content, indent=2, allow_nan=False) + "\n")
    if not report.written:
        return facts, numbers
    lines = (json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in report.written)
    atomic_write(folder / "written.jsonl", "".join(lines))
    return facts, numbers, folder / "written.jsonl"


def _frozen(array: NDArray[np.float64]) -> NDArray[np.float64]:
    array.setflags(write=False)
    return array
