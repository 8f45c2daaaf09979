"""One small figure of every kind, shared by the renderers' tests."""

import numpy as np
import pytest

from damcha.figures import (
    Provenance,
    attention_figure,
    attention_over_input_figure,
    curves_figure,
    distribution_figure,
    metric_figure,
    reconstruction_figure,
    spectrum_figure,
)

NASTY = ["a", "␠", "<b>$x^2$</b>", "é¹", "0xC3", "\U0001f600", "%{z}", "\ud800", "مر"]
"""Labels that HTML, TeX, a template, a font or an encoder could trip over."""


def figures():
    rng = np.random.default_rng(3)
    metric = rng.normal(size=(16, 16)).astype(np.float32)
    attention = rng.random((9, 9)) * np.tri(9)
    attention /= attention.sum(1, keepdims=True)
    picture = rng.integers(0, 256, (6, 6, 3), np.uint8)
    source = Provenance(
        run="run",
        epoch=3,
        weights_digest="ab" * 32,
        input_digest="cd" * 32,
        input_name="<i>$boot$</i>.png",
        settings={"view": "full"},
        version="0.1.0",
        command="damcha figure metric",
    )
    weights = attention[-2].copy()
    weights[-1] = np.nan
    return {
        "metric": metric_figure(metric, 4, provenance=source),
        "heads": metric_figure(metric, 4, "head_metrics", source),
        "blocks": metric_figure(metric, 4, "blocks", source),
        "constant": metric_figure(np.ones((4, 4)), 2, provenance=source),
        "attention": attention_figure(attention, NASTY, source),
        "tokens": attention_over_input_figure(weights, NASTY, source),
        "over image": attention_over_input_figure(attention[-1], picture, source),
        "spectrum": spectrum_figure(
            np.linalg.eigvals(metric), np.linalg.svd(metric, compute_uv=False), source
        ),
        "curves": curves_figure(
            [{"epoch": k, "train_loss": 1 / (k + 1), "valid_loss": 2.0} for k in range(3)], source
        ),
        "reconstruction": reconstruction_figure(picture, picture, rng.random((3, 3)), source),
        "distribution": distribution_figure(np.arange(9) / 36, NASTY, 5, source),
    }


KINDS = tuple(figures())


@pytest.fixture(params=KINDS)
def figure(request):
    return figures()[request.param]


@pytest.fixture
def every():
    return figures()
