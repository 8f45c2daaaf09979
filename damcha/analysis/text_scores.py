"""Scores of generated text: BLEU, chrF and BARTScore of hypotheses against references.

Every example has one hypothesis and one or more references. BLEU and chrF are sacrebleu's
(``pip install 'damcha[text]'``): a score is comparable only with its ``signature``, which is kept.
BARTScore needs a folder with a BART model, of which only safetensors are read and nothing is
downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from damcha.errors import InputError

Scorer = Callable[[Sequence[str], Sequence[str]], Float[np.ndarray, " pairs"]]
"""(given texts, texts) → mean log-probability of a token of each text, given its other, in nats."""


@dataclass(frozen=True, eq=False)
class TextScore:
    """A score of hypotheses, from 0 to 100."""

    name: str
    corpus: float
    """Of all examples together; not the mean of theirs."""
    signature: str
    """sacrebleu's account of what was computed, and by which version."""
    examples: Float[np.ndarray, " n"] | None = None
    """Of each example; None for BLEU, which is of a corpus."""


@dataclass(frozen=True, eq=False)
class BartScore:
    """BARTScore of each example: mean log-probability of a token in nats, at most 0."""

    precision: Float[np.ndarray, " n"]
    """Of the hypothesis given the reference, mean over references."""
    recall: Float[np.ndarray, " n"]
    """Of the reference given the hypothesis, mean over references."""
    model: str
    """The model's folder, by its name."""

    @property
    def f(self) -> NDArray[np.float64]:
        """The arithmetic mean of both, as the authors take it, [n]."""
        found: NDArray[np.float64] = (self.precision + self.recall) / 2
        return found


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> TextScore:
    """Corpus BLEU (Papineni et al. 2002) with sacrebleu's defaults (Post 2018).

    Raises
    ------
    InputError
        If sacrebleu is missing, there is nothing to score, or an example has no reference.
    """
    metric = _sacrebleu().BLEU()
    score = metric.corpus_score(list(hypotheses), _streams(hypotheses, references))
    return TextScore("BLEU", float(score.score), str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> TextScore:
    """Return chrF2 (Popović 2015) of the corpus and of each example, with sacrebleu's defaults.

    Raises
    ------
    InputError
        As :func:`bleu`.
    """
    metric = _sacrebleu().CHRF()
    streams = _streams(hypotheses, references)
    examples = np.array(
        [
            metric.sentence_score(hypothesis, list(own)).score
            for hypothesis, own in zip(hypotheses, references, strict=True)
        ]
    )
    examples.setflags(write=False)
    score = metric.corpus_score(list(hypotheses), streams)
    return TextScore("chrF2", float(score.score), str(metric.get_signature()), examples)


def bart_score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    scorer: Scorer,
    model: str = "",
) -> BartScore:
    """BARTScore (Yuan et al. 2021) in both directions, with a scorer of :func:`bart_scorer`.

    Raises
    ------
    InputError
        If there is nothing to score, or an example has no reference.
    """
    _check(hypotheses, references)
    owner = [k for k, own in enumerate(references) for _ in own]
    made = [hypotheses[k] for k in owner]
    true = [reference for own in references for reference in own]

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.bincount(owner, values) / np.bincount(owner)
        found.setflags(write=False)
        return found

    return BartScore(mean(scorer(true, made)), mean(scorer(made, true)), model)


def bart_scorer(folder: str | Path, *, batch: int = 8, device: str = "cpu") -> Scorer:
    """Open a BART model (e.g. bart-large-cnn) and its tokenizer from a folder.

    Returns
    -------
    Scorer
        Longer texts than the model's positions are cut, as the authors do.

    Raises
    ------
    InputError
        If transformers is missing, or the folder has no such model.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"BARTScore: there is no folder '{folder}' with a BART model")
    package: Any = _package("transformers", "BARTScore")
    try:
        tokenizer = package.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        model = package.AutoModelForSeq2SeqLM.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"BARTScore: '{folder.name}' cannot be opened as a sequence-to-sequence model with "
            f"model.safetensors and its tokenizer ({reason})"
        ) from None
    if model.config.model_type != "bart":
        raise InputError(
            f"BARTScore: '{folder.name}' holds a model of type '{model.config.model_type}', "
            "not bart; name the folder of a BART model"
        )
    model = model.eval().requires_grad_(False).to(device)
    longest = int(model.config.max_position_embeddings)

    def tokens(texts: Sequence[str]) -> Any:
        found = tokenizer(
            list(texts), max_length=longest, truncation=True, padding=True, return_tensors="pt"
        )
        return found.to(device)

    @torch.no_grad()
    def score(given: Sequence[str], texts: Sequence[str]) -> NDArray[np.float64]:
        found = []
        for first in range(0, len(texts), batch):
            source, target = (
                tokens(given[first : first + batch]),
                tokens(texts[first : first + batch]),
            )
            mask = target["attention_mask"].bool()
            logits = model(
                input_ids=source["input_ids"],
                attention_mask=source["attention_mask"],
                labels=target["input_ids"],  # the model shifts them to the right itself
            ).logits
            log_p = logits.double().log_softmax(-1)
            log_p = log_p.gather(-1, target["input_ids"][..., None])[..., 0]
            found.append(((log_p * mask).sum(1) / mask.sum(1)).cpu().numpy())
        return np.concatenate(found)

    return score


def _sacrebleu() -> Any:
    return _package("sacrebleu.metrics", "BLEU and chrF")


def _package(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"{what}: the package {name.partition('.')[0]} is not installed; "
            "run pip install 'damcha[text]'"
        ) from None


def _streams(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> list[list[str | None]]:
    """References as sacrebleu takes them: first ones, second ones, …; None where one has fewer."""
    _check(hypotheses, references)
    most = max(map(len, references))
    return [[own[k] if k < len(own) else None for own in references] for k in range(most)]


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(hypotheses) != len(references) or not len(hypotheses):
        raise InputError(
            f"references: there are those of {len(references)} examples for {len(hypotheses)} "
            "hypotheses; give each its own, and at least one example"
        )
    for k, own in enumerate(references):
        if isinstance(own, str) or not len(own):
            raise InputError(
                f"references: example {k} has {own!r:.40}; give a list of one reference or more"
            )
