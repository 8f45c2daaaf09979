"""DAMCHA against its definition (design.md §2-3) written as plain loops over numbers.

The loops share no code with the library: no reshapes, no matrix products, no batching.
"""

import math

import numpy as np
import pytest
import torch

from damcha.attention import Cache, DAMCHAttention
from damcha.config import MetricConfig
from damcha.tap import tap

B, L, D, H, E = 2, 5, 6, 3, 2
TOLERANCE = 1e-10


def affine(x, weight, bias):
    """Weight x + bias."""
    return [
        sum(weight[row][j] * x[j] for j in range(len(x))) + bias[row] for row in range(len(weight))
    ]


def gelu(x):
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def context(x, real, t):
    """The mean of the real tokens 0 … t."""
    tokens = [x[i] for i in range(t + 1) if real[i]]
    return [sum(token[j] for token in tokens) / max(len(tokens), 1) for j in range(D)]


def generator(weights, config, c):
    """The numbers that f_θ puts out."""
    if config.generator == "static":
        return list(weights["constant"])
    for depth in range(len(config.hidden_dims)):
        name = f"hidden.{2 * depth}"
        c = [gelu(v) for v in affine(c, weights[f"{name}.weight"], weights[f"{name}.bias"])]
    return affine(c, weights["output.weight"], weights["output.bias"])


def metric_of(weights, config, raw, layer):
    """M as a list of rows."""
    M = [[0.0] * D for _ in range(D)]
    for p in range(D):
        for q in range(D):
            a, i, b, j = p // E, p % E, q // E, q % E

            def own(k, i=i, j=j):
                return raw[k * E * E + i * E + j]

            if config.constraint == "psd":
                r = config.rank
                M[p][q] = sum(raw[p * r + k] * raw[q * r + k] for k in range(r)) / math.sqrt(r)
                M[p][q] += config.psd_epsilon * (p == q)
            elif config.constraint == "low_rank":
                r = config.rank
                M[p][q] = sum(raw[p * r + k] * raw[D * r + q * r + k] for k in range(r))
                M[p][q] /= math.sqrt(r)
            elif config.constraint == "symmetric":
                M[p][q] = (raw[p * D + q] + raw[q * D + p]) / 2
            elif config.off_diagonal == "direct":
                M[p][q] = raw[p * D + q]
            elif a == b:
                M[p][q] = own(a)
            elif config.off_diagonal == "separate":
                M[p][q] = weights["separate"][a][i][q]
            else:
                M[p][q] = sum(weights["alpha"][a][b][k] * own(k) for k in range(H))
            M[p][q] *= config.diagonal_scale if a == b else config.off_diagonal_scale
            for k in range(config.layer_bias_rank):
                M[p][q] += (
                    weights["bias_u"][p][k]
                    * weights["bias_scales"][layer][k]
                    * weights["bias_v"][q][k]
                )
    return M


def score(config, M, query, key, a):
    """S_a of one query and one key."""
    total = 0.0
    for i in range(E):
        for b in range(H):
            for j in range(E):
                seen = key[b * E + j] if config.aggregation == "bilinear" else key[a * E + j]
                total += query[a * E + i] * M[a * E + i][b * E + j] * seen
    return total / math.sqrt(E)


def definition(weights, config, x, real, causal):
    """Output, probabilities and the metric of every query, for one example."""
    generator_weights = {k[7:]: v for k, v in weights.items() if k.startswith("metric.")}
    values = [affine(t, weights["value_proj.weight"], weights["value_proj.bias"]) for t in x]
    out, probabilities, metrics = np.zeros((L, D)), np.zeros((H, L, L)), []
    for t in range(L):
        last = L - 1
        if config.context == "causal":
            last = t // config.context_stride * config.context_stride
        raw = generator(generator_weights, config, context(x, real, last))
        M = metric_of(generator_weights, config, raw, layer=0)
        metrics.append(M)
        mixed = []
        for a in range(H):
            visible = [s for s in range(L) if real[s] and (s <= t or not causal)]
            exponentials = {s: math.exp(score(config, M, x[t], x[s], a)) for s in visible}
            for s in visible:
                probabilities[a, t, s] = exponentials[s] / sum(exponentials.values())
            mixed += [
                sum(probabilities[a, t, s] * values[s][a * E + i] for s in visible)
                for i in range(E)
            ]
        if real[t]:
            out[t] = affine(mixed, weights["out_proj.weight"], weights["out_proj.bias"])
    return out, probabilities, np.array(metrics)


CONFIGS = {
    "free": {},
    "deep": {"hidden_dims": (4, 3, 5)},
    "affine": {"hidden_dims": ()},
    "static": {"generator": "static"},
    "symmetric": {"constraint": "symmetric", "diagonal_scale": 0.5, "off_diagonal_scale": -2.0},
    "psd": {"constraint": "psd", "rank": 4, "off_diagonal_scale": 0.5},
    "low rank": {"constraint": "low_rank", "rank": 2, "diagonal_scale": 3.0},
    "combination": {"off_diagonal": "linear_combination", "off_diagonal_scale": 2.0},
    "separate": {"off_diagonal": "separate", "diagonal_scale": -1.0},
    "layer bias": {"layer_bias_rank": 2, "off_diagonal_scale": 0.0},
    "static psd": {"generator": "static", "constraint": "psd", "rank": 1},
}
USES = {
    "full": ({"context": "full"}, False),
    "causal": ({"context": "causal"}, True),
    "stride 2": ({"context": "causal", "context_stride": 2}, True),
    "stride 9": ({"context": "causal", "context_stride": 9}, True),
    "causal context, all keys": ({"context": "causal", "context_stride": 3}, False),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
@pytest.mark.parametrize("name", CONFIGS)
def test_layer_is_the_definition(name, aggregation, use, randomise, normal):
    settings, causal = USES[use]
    if CONFIGS[name].get("generator") == "static":
        settings = {}
    config = MetricConfig(
        **{"hidden_dims": (4,), **CONFIGS[name], **settings, "aggregation": aggregation}
    )
    layer = randomise(DAMCHAttention(D, H, batch_first=True, metric=config).double(), seed=3)
    x = normal(B, L, D, seed=4)
    pads = torch.zeros(B, L, dtype=torch.bool)
    pads[0, 0] = pads[1, 3] = pads[1, 4] = True
    weights = {key: value.numpy() for key, value in layer.state_dict().items()}
    expected = [
        definition(weights, config, x[b].tolist(), (~pads[b]).tolist(), causal) for b in range(B)
    ]
    out, probabilities, metrics = (np.array(part) for part in zip(*expected, strict=True))

    with torch.no_grad():
        fused, _ = layer(x, x, x, key_padding_mask=pads, need_weights=False, is_causal=causal)
        with tap(layer, record=("attention",)) as capture:
            explicit, _ = layer(x, x, x, key_padding_mask=pads, is_causal=causal)
    np.testing.assert_allclose(fused.numpy(), out, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(explicit.numpy(), out, rtol=0, atol=TOLERANCE)
    real = (~pads)[:, None, :, None].expand(B, H, L, L).numpy()
    np.testing.assert_allclose(
        capture.attention[0].numpy()[real], probabilities[real], rtol=0, atol=TOLERANCE
    )
    (record,) = capture.records
    served = np.arange(L) // record.stride if record.stride else np.zeros(L, dtype=int)
    captured = record.metric.detach().numpy()[:, served]
    np.testing.assert_allclose(
        np.broadcast_to(captured, metrics.shape), metrics, rtol=0, atol=TOLERANCE
    )

    if causal:
        cache, steps = Cache(), []
        for t in range(L):
            new = x[:, t : t + 1]
            y, _ = layer(
                new, new, new, key_padding_mask=pads[:, t : t + 1], need_weights=False,
                is_causal=True, cache=cache,
            )  # fmt: skip
            steps.append(y.detach())
        np.testing.assert_allclose(torch.cat(steps, 1).numpy(), out, rtol=0, atol=TOLERANCE)
