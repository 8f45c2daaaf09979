"""Checkpoints of the authors' own code, built as design.md §7 describes them.

`Theirs` is a plain reference of their forward pass, straight from design.md §2 and §7 and the
oracles' README: loops over layers, heads and blocks, one metric a query. The numbers of the parts
themselves are held to the authors' own outputs in tests/oracles.
"""

import math
import random

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear

from damcha.checkpoint import authors
from damcha.model import unpatchify

BASE = {
    "d_model": 16, "n_heads": 4, "d_ff": 24, "n_layers": 3, "use_M": True, "use_mlp": True,
    "share_mlp": True, "mlp_hidden": (6, 10), "off_diag_mode": "mlp", "diag_scale": 1.0,
    "off_diag_scale": 1.0, "use_layer_bias": False, "layer_bias_rank": 2, "compact_rank": 0,
    "free_M": False, "baseline": None, "dataset": "cifar10", "patch_size": 4, "img_size": 16,
    "in_ch": 3, "epochs": 50, "lr": 3e-4, "weight_decay": 0.0, "batch_size": 64, "seed": 42,
    "device": "cuda:0", "experiment_name": "mlp_shared_depth3_20260101_000000",
}  # fmt: skip

VARIANTS = {
    "shared": {},
    "unshared": {"share_mlp": False},
    "static": {"use_mlp": False, "share_mlp": False},
    "static, scales ignored": {"use_mlp": False, "share_mlp": False, "off_diag_scale": 0.0},
    "standard": {"use_M": False, "use_mlp": False, "share_mlp": False},
    "deep": {"mlp_hidden": (5,) * 8},
    "affine": {"mlp_hidden": ()},
    "scales": {"diag_scale": 0.7, "off_diag_scale": -0.4},
    "diagonal only": {"off_diag_scale": 0.0},
    "linear_comb": {"off_diag_mode": "linear_comb", "off_diag_scale": 0.5},
    "linear_comb unshared": {"off_diag_mode": "linear_comb", "share_mlp": False},
    "bayesian": {"off_diag_mode": "bayesian"},
    "separate_B": {"off_diag_mode": "separate_B", "diag_scale": 2},
    "compact": {"compact_rank": 3, "diag_scale": 0.5},
    "compact, mode unread": {"compact_rank": 2, "off_diag_mode": "bayesian"},
    "free, mode unread": {"free_M": True, "off_diag_mode": "separate_B", "share_mlp": False},
    "layer bias": {"use_layer_bias": True},
    "layer bias, one scale": {"use_layer_bias": True, "diag_scale": 0.5, "off_diag_scale": 0.5},
    "layer bias, two scales": {"use_layer_bias": True, "diag_scale": 1.5, "off_diag_scale": -0.5},
    "layer bias, unshared": {"use_layer_bias": True, "share_mlp": False, "off_diag_scale": 0.3},
    "layer bias, compact": {"use_layer_bias": True, "compact_rank": 3, "off_diag_scale": 0.0},
    "odd width": {"d_model": 15, "n_heads": 3},
    "grey": {"dataset": "mnist", "in_ch": 1, "patch_size": 2, "img_size": 8},
    "tha": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "tha"},
    "mma": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "mma"},
    "colmha": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "colmha"},
}  # fmt: skip


def table(d, rows=4096):
    """Their sinusoidal positions, in float32 as they compute them."""
    place = torch.arange(rows).unsqueeze(1)
    rate = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    pe = torch.zeros(rows, d)
    pe[:, 0::2] = torch.sin(place * rate)
    pe[:, 1::2] = torch.cos(place * rate[: d // 2])
    return pe


class Theirs:
    """Random weights under their names, what they compute, and their file."""

    def __init__(self, seed=0, symbols=None, **changes):
        self.c = {**BASE, **changes}
        self.random = torch.Generator().manual_seed(seed)
        c = self.c
        d, h, e = c["d_model"], c["n_heads"], c["d_model"] // c["n_heads"]
        self.w = {}
        shared = c["use_mlp"] and c["share_mlp"]
        if shared:
            self.generator("decoder.shared_mlp_module.")
        for i in range(c["n_layers"]):
            layer = f"decoder.layers.{i}."
            own = f"{layer}self_attn."
            self.linear(f"{own}out_proj", d, d)
            if c["baseline"] == "colmha":
                for kind in "qk":
                    self.tensor(f"{own}W_shared_{kind}.weight", d, d)
                    self.tensor(f"{own}combine_{kind}", h, h)
            elif not c["use_M"]:
                self.linear(f"{own}W_q", d, d)
                self.linear(f"{own}W_k", d, d)
            self.linear(f"{own}W_v", d, d)
            if c["baseline"] == "tha":
                self.tensor(f"{own}pre_proj.weight", h, h)
                self.tensor(f"{own}post_proj.weight", h, h)
            if c["use_M"] and not c["use_mlp"]:
                self.tensor(f"{own}M0", d, d)
            elif shared:
                for name in [n for n in self.w if n.startswith("decoder.shared_mlp_module.")]:
                    copy = name.replace("decoder.shared_mlp_module.", f"{own}_shared_mlp.")
                    self.w[copy] = self.w[name]
            elif c["use_M"]:
                self.generator(f"{own}_own_mlp.")
            self.linear(f"{layer}ff.net.0", d, c["d_ff"])
            self.linear(f"{layer}ff.net.3", c["d_ff"], d)
            for norm in ("ln1", "ln2"):
                self.tensor(f"{layer}{norm}.weight", d)
                self.tensor(f"{layer}{norm}.bias", d)
        self.w["decoder.pe.pe"] = table(d)
        assert e * h == d
        main_weights, self.w = self.w, {}
        if symbols:
            self.tensor("weight", symbols, d)
            self.parts = {"embedding": self.w}
            self.w = {}
            self.linear("proj", d, symbols)
        else:
            pixels = c["in_ch"] * c["patch_size"] ** 2
            self.linear("proj", pixels, d)
            self.parts = {"patcher": self.w}
            self.w = {}
            self.linear("proj.0", d, 2 * d)
            self.linear("proj.2", 2 * d, pixels)
        self.parts["head"] = self.w
        self.w = main_weights

    def tensor(self, name, *shape):
        scale = 0.5 if len(shape) == 1 else shape[-1] ** -0.5
        self.w[name] = torch.randn(shape, generator=self.random) * scale

    def linear(self, name, n_in, n_out):
        self.tensor(f"{name}.weight", n_out, n_in)
        self.tensor(f"{name}.bias", n_out)

    def generator(self, prefix):
        c = self.c
        d, h, e, r = c["d_model"], c["n_heads"], c["d_model"] // c["n_heads"], c["layer_bias_rank"]
        out = 2 * d * c["compact_rank"] or d * d
        widths = (d, *c["mlp_hidden"], out)
        for place in range(len(widths) - 1):
            self.linear(f"{prefix}mlp.{3 * place}", widths[place], widths[place + 1])
        if c["off_diag_mode"] in ("linear_comb", "bayesian"):
            self.tensor(f"{prefix}off_diag_alpha", h, h, h)
        if c["off_diag_mode"] == "bayesian":
            self.tensor(f"{prefix}off_diag_alpha_logvar", h, h, h)
        if c["off_diag_mode"] == "separate_B":
            self.tensor(f"{prefix}B", h, e, d)
        mask = torch.block_diag(*[torch.ones(e, e)] * h)
        self.w[f"{prefix}diag_mask"], self.w[f"{prefix}off_diag_mask"] = mask, 1 - mask
        if c["use_layer_bias"]:
            self.tensor(f"{prefix}layer_bias_U", d, r)
            self.tensor(f"{prefix}layer_bias_V", d, r)
            self.tensor(f"{prefix}layer_scales", c["n_layers"], r)

    # ------------------------------------------------------------ what they compute, in float64

    def metric(self, prefix, context, layer):
        """M [d, d] of one context [d]."""
        c, w = self.c, {n: v.double() for n, v in self.w.items() if n.startswith(prefix)}
        d, h, e = c["d_model"], c["n_heads"], c["d_model"] // c["n_heads"]
        x = context
        for place in range(len(c["mlp_hidden"]) + 1):
            x = gelu(x) if place else x
            x = linear(x, w[f"{prefix}mlp.{3 * place}.weight"], w[f"{prefix}mlp.{3 * place}.bias"])
        if c["compact_rank"]:
            u, v = x.reshape(2, d, c["compact_rank"])
            metric = u @ v.T / math.sqrt(c["compact_rank"])
        else:
            raw = x.reshape(d, d)
            metric = raw.clone()
            mode = "mlp" if c["free_M"] else c["off_diag_mode"]
            cut = [slice(a * e, (a + 1) * e) for a in range(h)]
            for a in range(h):
                for b in range(h):
                    if a != b and mode in ("linear_comb", "bayesian"):
                        alpha = w[f"{prefix}off_diag_alpha"][a, b]
                        metric[cut[a], cut[b]] = sum(
                            alpha[k] * raw[cut[k], cut[k]] for k in range(h)
                        )
                    elif a != b and mode == "separate_B":
                        metric[cut[a], cut[b]] = w[f"{prefix}B"][a][:, cut[b]]
        if c["use_layer_bias"]:
            u, v = w[f"{prefix}layer_bias_U"], w[f"{prefix}layer_bias_V"]
            metric = metric + (u * w[f"{prefix}layer_scales"][layer]) @ v.T
        on, off = w[f"{prefix}diag_mask"], w[f"{prefix}off_diag_mask"]
        return metric * (on * c["diag_scale"] + off * c["off_diag_scale"])

    def row_sum(self, metric):
        d, h = self.c["d_model"], self.c["n_heads"]
        return metric.reshape(h, d // h, h, d // h).sum(2)

    def metrics(self, prefix, x, layer):
        """R of every query, [L, h, e, e], from its running mean."""
        means = x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None]
        return torch.stack([self.row_sum(self.metric(prefix, m, layer)) for m in means])

    def decoder(self, x):
        """[L, d] embeddings → [L, d]."""
        c, w = self.c, {name: value.double() for name, value in self.w.items()}
        d, h = c["d_model"], c["n_heads"]
        e, length = d // h, len(x)
        x = x + w["decoder.pe.pe"][:length]
        shared = c["use_mlp"] and c["share_mlp"] and not c["use_layer_bias"]
        given = self.metrics("decoder.shared_mlp_module.", x, 0) if shared else None
        future = torch.ones(length, length).triu(1).bool()
        for i in range(c["n_layers"]):
            layer = f"decoder.layers.{i}."
            own = f"{layer}self_attn."
            heads = x.reshape(length, h, e)
            if not c["use_M"]:
                q, k = self.queries_and_keys(w, own, x)
            else:
                if given is not None:
                    rows = given
                elif not c["use_mlp"]:
                    rows = self.row_sum(w[f"{own}M0"]).expand(length, -1, -1, -1)
                else:
                    kind = "_shared_mlp." if c["share_mlp"] else "_own_mlp."
                    rows = self.metrics(own + kind, x, i)
                q, k = torch.einsum("the,thef->thf", heads, rows), heads
            scores = torch.einsum("the,she->hts", q, k) / math.sqrt(e)
            if c["baseline"] == "tha":
                scores = torch.einsum("gh,hts->gts", w[f"{own}pre_proj.weight"], scores)
            mask = future.expand(h, -1, -1).clone()
            if c["baseline"] == "mma":
                near = torch.ones(length, length).tril(-8).bool()
                for a in range(h):
                    mask[a] |= (False, near, False, future.T)[a % 4]
            weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
            if c["baseline"] == "tha":
                weights = torch.einsum("gh,hts->gts", w[f"{own}post_proj.weight"], weights)
            v = linear(x, w[f"{own}W_v.weight"], w[f"{own}W_v.bias"]).reshape(length, h, e)
            y = torch.einsum("hts,she->the", weights, v).reshape(length, d)
            y = linear(y, w[f"{own}out_proj.weight"], w[f"{own}out_proj.bias"])
            x = layer_norm(x + y, (d,), w[f"{layer}ln1.weight"], w[f"{layer}ln1.bias"])
            y = gelu(linear(x, w[f"{layer}ff.net.0.weight"], w[f"{layer}ff.net.0.bias"]))
            y = linear(y, w[f"{layer}ff.net.3.weight"], w[f"{layer}ff.net.3.bias"])
            x = layer_norm(x + y, (d,), w[f"{layer}ln2.weight"], w[f"{layer}ln2.bias"])
        return x

    def queries_and_keys(self, w, own, x):
        h = self.c["n_heads"]
        found = []
        for kind in "qk":
            if self.c["baseline"] == "colmha":
                part = linear(x, w[f"{own}W_shared_{kind}.weight"]).reshape(len(x), h, -1)
                part = torch.einsum("oi,tie->toe", w[f"{own}combine_{kind}"], part)
            else:
                part = linear(x, w[f"{own}W_{kind}.weight"], w[f"{own}W_{kind}.bias"])
            found.append(part.reshape(len(x), h, -1))
        return found

    def reconstruct(self, image, hidden):
        """[C, S, S] pixels in [−1, 1] and hidden patches [n] → the predicted image [C, S, S]."""
        p, side = self.c["patch_size"], self.c["img_size"] // self.c["patch_size"]
        patcher = {name: value.double() for name, value in self.parts["patcher"].items()}
        head = {name: value.double() for name, value in self.parts["head"].items()}
        tokens = []
        for row in range(side):
            for column in range(side):
                patch = image[:, row * p : (row + 1) * p, column * p : (column + 1) * p]
                tokens.append(patch.double().flatten())  # (channel, row, column)
        x = linear(torch.stack(tokens), patcher["proj.weight"], patcher["proj.bias"])
        x[hidden] = 0
        x = gelu(linear(self.decoder(x), head["proj.0.weight"], head["proj.0.bias"]))
        made = linear(x, head["proj.2.weight"], head["proj.2.bias"])
        image = torch.zeros_like(image, dtype=torch.float64)
        for number, patch in enumerate(made):
            row, column = divmod(number, side)
            place = (
                slice(None),
                slice(row * p, (row + 1) * p),
                slice(column * p, (column + 1) * p),
            )
            image[place] = patch.reshape(self.c["in_ch"], p, p)
        return image

    # ------------------------------------------------------------ their file

    def content(self, epoch=10, loss=0.25):
        weights = [torch.nn.Parameter(value.clone()) for value in self.w.values()]
        optimizer = torch.optim.Adam(weights, lr=3e-4)
        sum(weight.sum() for weight in weights).backward()
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
        state = np.random.RandomState(0).get_state()
        saved = optimizer.state_dict()
        for part in saved["state"].values():
            part["step"] += 703 * epoch - 1
        return {
            "format_version": 2, "epoch": epoch, "loss": loss, "best_loss": 0.2,
            "model_state_dict": self.w, "components": self.parts, "config": self.c,
            "optimizer_state_dict": saved, "scheduler_state_dict": scheduler.state_dict(),
            "torch_rng_state": torch.get_rng_state(), "python_rng_state": random.getstate(),
            "numpy_rng_state": (state[0], state[1].tolist(), *state[2:]),
            "off_diag_params": {"off_diag_mode": self.c["off_diag_mode"]},
        }  # fmt: skip

    def save(self, path, **changes):
        torch.save({**self.content(), **changes}, path)
        return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint_epoch_10.pt"


def live(model, image, hidden):
    """What a damcha model makes of the image, [C, S, S]."""
    data = model.config.data
    made = model(image[None].float(), hidden[None])
    return unpatchify(made, data.patch_size, data.channels)[0].double()


def some_image(theirs, seed=5):
    generator = torch.Generator().manual_seed(seed)
    size = theirs.c["img_size"]
    return torch.rand((theirs.c["in_ch"], size, size), generator=generator) * 2 - 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_live_model_computes_what_theirs_computes(variant, path, tmp_path):
    theirs = Theirs(**VARIANTS[variant])
    run = authors.import_run(theirs.save(path), tmp_path / "run")
    model = run.load(device="cpu")
    image = some_image(theirs)
    side = theirs.c["img_size"] // theirs.c["patch_size"]
    for rows in ((1,), (0, 1, 2), ()):  # theirs hide one to three rows of patches
        hidden = torch.zeros(side, side, dtype=torch.bool)
        hidden[list(rows)] = True
        expected = theirs.reconstruct(image, hidden.flatten())
        assert expected.std() > 0.1
        torch.testing.assert_close(
            live(model, image, hidden.flatten()), expected, rtol=0, atol=1e-5
        )
