"""Checkpoints of the authors' own code, built as design.md §7 describes them.

`Theirs` is a plain reference of their forward pass, straight from design.md §2 and §7 and the
oracles' README: loops over layers, heads and blocks, one metric a query. The numbers of the parts
themselves are held to the authors' own outputs in tests/oracles.
"""

import argparse
import json
import math
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner
from streamlit.testing.v1 import AppTest
from torch import nn
from torch.nn.functional import gelu, layer_norm, linear

from damcha import gallery
from damcha.attention.positions import sinusoidal
from damcha.checkpoint import authors, open_run, read_header
from damcha.cli import main
from damcha.errors import CheckpointError, InputError
from damcha.figures.canvas import from_canvas
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
    "their default size": {
        "d_model": 128, "n_heads": 8, "d_ff": 256, "n_layers": 4, "img_size": 32,
        "mlp_hidden": (16, 32),
    },
    "odd width": {"d_model": 15, "n_heads": 3},
    "grey": {"dataset": "mnist", "in_ch": 1, "patch_size": 2, "img_size": 8},
    "tha": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "tha"},
    "mma": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "mma"},
    "colmha": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "colmha"},
    "dcmha": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "dcmha"},
    "moa": {"use_M": False, "use_mlp": False, "share_mlp": False, "baseline": "moa"},
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
            elif c["baseline"] == "moa":
                for kind in "qkv":
                    self.tensor(f"{own}W_{kind}", 2 * h, d, e)
                self.linear(f"{own}router", d, 2 * h)
            elif not c["use_M"]:
                self.linear(f"{own}W_q", d, d)
                self.linear(f"{own}W_k", d, d)
            if c["baseline"] != "moa":
                self.linear(f"{own}W_v", d, d)
            if c["baseline"] == "dcmha":
                self.linear(f"{own}router.0", d, max(4, h // 2))
                self.linear(f"{own}router.2", max(4, h // 2), h * h)
                self.linear(f"{own}gate_proj", d, h)
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
        d, length = c["d_model"], len(x)
        x = x + w["decoder.pe.pe"][:length]
        shared = c["use_mlp"] and c["share_mlp"] and not c["use_layer_bias"]
        given = self.metrics("decoder.shared_mlp_module.", x, 0) if shared else None
        future = torch.ones(length, length).triu(1).bool()
        for i in range(c["n_layers"]):
            layer = f"decoder.layers.{i}."
            own = f"{layer}self_attn."
            if c["baseline"] == "moa":
                y = self.mixture(w, own, x, future)
            else:
                y = self.attention(w, own, x, future, i, given)
            y = linear(y, w[f"{own}out_proj.weight"], w[f"{own}out_proj.bias"])
            x = layer_norm(x + y, (d,), w[f"{layer}ln1.weight"], w[f"{layer}ln1.bias"])
            y = gelu(linear(x, w[f"{layer}ff.net.0.weight"], w[f"{layer}ff.net.0.bias"]))
            y = linear(y, w[f"{layer}ff.net.3.weight"], w[f"{layer}ff.net.3.bias"])
            x = layer_norm(x + y, (d,), w[f"{layer}ln2.weight"], w[f"{layer}ln2.bias"])
        return x

    def attention(self, w, own, x, future, layer, given):
        """Heads side by side [L, d], before W_O."""
        c, (length, d) = self.c, x.shape
        h = c["n_heads"]
        e = d // h
        if not c["use_M"]:
            q, k = self.queries_and_keys(w, own, x)
        else:
            if given is not None:
                rows = given
            elif not c["use_mlp"]:
                rows = self.row_sum(w[f"{own}M0"]).expand(length, -1, -1, -1)
            else:
                kind = "_shared_mlp." if c["share_mlp"] else "_own_mlp."
                rows = self.metrics(own + kind, x, layer)
            k = x.reshape(length, h, e)
            q = torch.einsum("the,thef->thf", k, rows)
        scores = torch.einsum("the,she->hts", q, k) / math.sqrt(e)
        if c["baseline"] == "tha":
            scores = torch.einsum("gh,hts->gts", w[f"{own}pre_proj.weight"], scores)
        if c["baseline"] == "dcmha":
            x1 = torch.tanh(linear(x, w[f"{own}router.0.weight"], w[f"{own}router.0.bias"]))
            x1 = linear(x1, w[f"{own}router.2.weight"], w[f"{own}router.2.bias"])
            share = x1.reshape(length, h, h).softmax(1)  # [query, source, target]
            gate = linear(x, w[f"{own}gate_proj.weight"], w[f"{own}gate_proj.bias"]).sigmoid()
            mixed = torch.einsum("tab,ats->bts", share, scores)
            scores = gate.T[..., None] * mixed + (1 - gate.T[..., None]) * scores
        mask = future.expand(h, -1, -1).clone()
        if c["baseline"] == "mma":
            near = torch.ones(length, length).tril(-8).bool()
            for a in range(h):
                mask[a] |= (False, near, False, future.T)[a % 4]
        weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
        if c["baseline"] == "tha":
            weights = torch.einsum("gh,hts->gts", w[f"{own}post_proj.weight"], weights)
        v = linear(x, w[f"{own}W_v.weight"], w[f"{own}W_v.bias"]).reshape(length, h, e)
        return torch.einsum("hts,she->the", weights, v).reshape(length, d)

    def mixture(self, w, own, x, future):
        """Of 2h experts each token's h best, gated, side by side by rank."""
        h = self.c["n_heads"]
        outputs = []
        for expert in range(2 * h):
            q, k, v = (x @ w[f"{own}W_{kind}"][expert] for kind in "qkv")
            scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(future, -torch.inf)
            outputs.append(scores.softmax(-1) @ v)
        logits = linear(x, w[f"{own}router.weight"], w[f"{own}router.bias"])
        rows = []
        for t in range(len(x)):
            best = logits[t].argsort(descending=True)[:h]
            gates = logits[t][best].softmax(0)
            rows.append(torch.cat([g * outputs[i][t] for g, i in zip(gates, best, strict=True)]))
        return torch.stack(rows)

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


def test_positions_of_their_default_size_are_sinusoidal(path, tmp_path):
    run = authors.import_run(Theirs(d_model=128, img_size=32).save(path), tmp_path / "run")
    assert run.config.model.positions == "sinusoidal"


def test_positions_that_our_own_table_does_not_reach_are_kept_as_they_are(path, tmp_path):
    theirs = Theirs(img_size=128, n_layers=1, n_heads=2, d_model=8)
    run = authors.import_run(theirs.save(path), tmp_path / "run")
    assert run.config.model.positions == "learned"
    model = run.load(device="cpu")
    assert torch.equal(model.positions.table, theirs.w["decoder.pe.pe"][:1024])
    assert "the table of positions stored as it was" in run.card


BASELINE = {"use_M": False, "use_mlp": False, "share_mlp": False}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"share_mlp": False},
        {"use_layer_bias": True},
        {"off_diag_mode": "linear_comb"},
        {"use_mlp": False, "share_mlp": False},
        BASELINE,
        {**BASELINE, "baseline": "tha"},
    ],
)
def test_a_text_model_computes_what_theirs_computes(changes, path, tmp_path):
    theirs = Theirs(symbols=300, dataset="wmt", **changes)
    run = authors.import_run(theirs.save(path), tmp_path / "run")
    assert run.task == "language_modelling" and run.unit == "nats a symbol"
    tokens = torch.tensor([101, 7, 299, 256, 0, 31])
    embedding = theirs.parts["embedding"]["weight"].double()
    head = theirs.parts["head"]
    expected = linear(
        theirs.decoder(embedding[tokens]), head["proj.weight"].double(), head["proj.bias"].double()
    )
    model = run.load(device="cpu")
    made = model(tokens[None, 1:])[0]
    torch.testing.assert_close(made.double(), expected[:-1], rtol=0, atol=1e-5)
    last = model.next_logits(tokens[None, 1:])[0]
    torch.testing.assert_close(last.double(), expected[-1], rtol=0, atol=1e-5)


def test_without_a_tokenizer_a_text_is_numbers(path, tmp_path):
    run = authors.import_run(Theirs(symbols=300, dataset="wmt").save(path), tmp_path / "run")
    assert "begins with symbol 101, as with the tokenizer bert-base-multilingual-cased" in run.card
    assert "a text is the numbers of its symbols" in run.card
    example = run.prepare("7 299, 12")
    assert example.inputs.tolist() == [[7, 299, 12]]
    assert example.labels == ("7", "299", "12")
    subject = gallery.open_subject(run, None, example)
    assert subject.inspection.answer.continuation.split()[0].isdigit()
    assert gallery.inspect.answer(subject).title == "Next symbol"
    for words, message in (
        ("a dog", "'a' is no symbol: this run has no tokenizer.* 0 to 299, with spaces"),
        ("7 300", "'300' is no symbol"),
        ("-1", "'-1' is no symbol"),
        ("²", "'²' is no symbol"),
        (",", "finds no symbol in this text"),
    ):
        with pytest.raises(InputError, match=message):
            run.prepare(words)
    assert run.prepare("7 " * 600).notes == ("Cut to 512 symbols.",)
    with pytest.raises(InputError, match="this run was imported, and the texts that"):
        run.evaluation_set(tmp_path)


def word_pieces(path, lowercase=False):
    """A tokenizer.json as the Hugging Face library saves BERT's, with 24 symbols."""
    words = (
        "[PAD] [UNK] [CLS] [SEP] a dog run ##s ##ning . ü u A Dog 狗 the cat on ##y mat sat ! b c"
    )
    words = words.split()
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: k for k, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(words[:4])
    tokenizer.save(str(path))
    return tokenizer


def byte_pairs(path, prefix_space=False):
    """… and as it saves BART's: marks before and after the symbols that spell text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(["the dog runs on the mat and the cat runs"] * 5, trainer)
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(path))
    return tokenizer


TEXTS = ["a dog runs.", "The cat — sat on the mat!", "狗 ü Ü  two  spaces", "zebra\x00\ttabs", "🐕"]


@pytest.mark.parametrize("make", [word_pieces, byte_pairs])
@pytest.mark.parametrize("option", [False, True])
def test_their_tokenizer_spells_as_it_did(make, option, path, tmp_path):
    reference = make(tmp_path / "tokenizer.json", option)
    size = reference.get_vocab_size()
    theirs = Theirs(symbols=size, dataset="elsewhere")
    run = authors.import_run(
        theirs.save(path), tmp_path / "run", tokenizer=tmp_path / "tokenizer.json"
    )
    first = 2 if make is word_pieces else 0
    assert (run.config.data.vocabulary, run.config.data.first_symbol) == (size, first)
    run = open_run(tmp_path / "run")
    for text in TEXTS:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert run.tokenizer.encode(text) == expected
        assert run.tokenizer.decode(expected) == reference.decode(expected)
    assert run.tokenizer.decode([first]) == ""
    labels = run.labels(np.arange(size))
    assert labels[first] == ("[CLS]" if make is word_pieces else "<s>")
    assert ("##ning" if make is word_pieces else "␠runs") in labels
    assert run.load(device="cpu").generate(torch.tensor([[5, 6]]), 2).shape == (1, 4)


def test_a_tokenizer_that_does_not_fit_is_refused(path, tmp_path):
    file = tmp_path / "tokenizer.json"
    word_pieces(file)
    with pytest.raises(InputError, match=r"a tokenizer of 24 symbols, and the model has 300"):
        authors.import_run(Theirs(symbols=300, dataset="wmt").save(path), tmp_path / "run", file)
    with pytest.raises(InputError, match="24 symbols, and this is no model of text"):
        authors.import_run(Theirs().save(path), tmp_path / "run", file)
    theirs = Theirs(symbols=300, dataset="elsewhere")
    with pytest.raises(CheckpointError, match=r"which symbol begins .* 'elsewhere'; .*--first-sym"):
        authors.import_run(theirs.save(path), tmp_path / "run")
    with pytest.raises(CheckpointError, match="of its own 300 symbols; got first_symbol=300"):
        authors.import_run(path, tmp_path / "run", first_symbol=300)
    assert authors.import_run(path, tmp_path / "run", first_symbol=299).config.data.first_symbol
    content = json.loads(file.read_text())
    for damage in (
        {"model": {**content["model"], "type": "Unigram"}},
        {"model": {**content["model"], "continuing_subword_prefix": "@@"}},
        {"normalizer": {"type": "Sequence", "normalizers": []}},
        {"normalizer": None},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}}},
        {"added_tokens": [{"id": 5, "content": "[CLS]", "special": True}]},
        {"added_tokens": [{"id": 24, "content": "new", "special": False}]},
        {"added_tokens": [{"id": 99, "content": "[X]", "special": True}]},
        {"model": []},
        {"post_processor": {"type": "TemplateProcessing", "single": []}},
        {"post_processor": {"type": "BertProcessing", "cls": ["[CLS]", float("inf")]}},
    ):
        file.write_text(json.dumps(content | damage))
        with pytest.raises(InputError, match=r"^tokenizer\.json: "):
            authors.import_run(path, tmp_path / "other", file)
    file.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"not a tokenizer\.json of the Hugging Face library"):
        authors.import_run(path, tmp_path / "other", file)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"kind": "regex"}, "not a tokenizer that damcha wrote"),
        ({"symbols": ["a", "a"] + [f"w{k}" for k in range(22)]}, "two of its symbols alike"),
        ({"marks": [24]}, "of 24 symbols uses others than 0 to 23"),
        ({"unknown": None}, "no symbol for unknown words"),
        ({"kind": "byte_pairs"}, "lacks some of the 256 bytes"),
        ({"symbols": ["a"]}, "not a tokenizer that damcha wrote"),
        ({"extra": 1}, "not a tokenizer that damcha wrote"),
        ({"symbols": [f"w{k}" for k in range(25)]}, "has 25 symbols, not 24"),
    ],
)
def test_a_damaged_tokenizer_of_a_run_is_refused(damage, message, path, tmp_path):
    word_pieces(tmp_path / "tokenizer.json")
    theirs = Theirs(symbols=24, dataset="commongen")
    run = authors.import_run(theirs.save(path), tmp_path / "run", tmp_path / "tokenizer.json")
    file = run.path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(CheckpointError, match=message):
        open_run(run.path).load(device="cpu")


def test_the_stack_of_a_text_model_opens_alone(path):
    theirs = Theirs(symbols=300, dataset="wmt")
    theirs.save(path)
    x = torch.randn(9, 16, generator=torch.Generator().manual_seed(3))
    made = authors.open_stack(path)((x + sinusoidal(9, 16, like=x))[None])[0]
    torch.testing.assert_close(made.double(), theirs.decoder(x.double()), rtol=0, atol=1e-5)


# ---------------------------------------------------------------- the run


@pytest.fixture
def folder(tmp_path):
    """Their checkpoints of epochs 2, 9 and 10, whose names sort as 10, 2, 9."""
    made = tmp_path / "mlp_shared"
    made.mkdir()
    for epoch in (2, 9, 10):
        theirs = Theirs(seed=epoch)
        content = theirs.content(epoch, loss=1 / epoch)
        torch.save(content, made / f"checkpoint_epoch_{epoch}.pt")
    torch.save(content, made / "best_model.pt")
    (made / "notes.txt").write_text("x")
    return made


def test_a_folder_becomes_one_run_with_epochs_in_numeric_order(folder, tmp_path):
    run = authors.import_run(folder, tmp_path / "theirs")
    assert run.epochs == (1, 8, 9)  # ours count from 0
    assert run.notes == run.strays == ()
    assert run.metrics == tuple(
        {"epoch": epoch - 1, "valid_loss": 1 / epoch, "best_valid_loss": 0.2}
        for epoch in (2, 9, 10)
    )
    for epoch in (2, 9, 10):
        weight = run.load(epoch - 1, "cpu").stack.metric.output.weight
        assert torch.equal(weight, Theirs(seed=epoch).w["decoder.shared_mlp_module.mlp.6.weight"])
    train = run.config.train
    assert (train.epochs, train.batch_size, train.seed) == (50, 64, 42)
    assert train.steps_per_epoch == 703
    assert run.config.data.dataset == "cifar10"


def test_the_card_names_every_file_its_digest_and_what_was_translated(folder, tmp_path):
    import hashlib

    run = authors.import_run(folder, tmp_path / "theirs")
    for file in folder.glob("checkpoint_epoch_*.pt"):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"`{file.name}` | {digest} |" in run.card
    for words in (
        "| 9 | 10 | 0.100000 |",
        "reordered from (channel, row, column)",
        "left out in the same folder: `best_model.pt`",
        "their losses hide one to three rows",
        "optimiser, scheduler and random states left out",
    ):
        assert words in run.card
    metadata = read_header(run.files[-1]).metadata
    assert metadata["epoch"] == "9"
    assert metadata["source_sha256"] in run.card


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("bayesian", "the variance of α left out"),
        ("compact, mode unread", "off_diag_mode 'bayesian' and its weights left out"),
        ("static, scales ignored", "block scales 1 and 0 left out"),
        ("layer bias, two scales", "layer bias of rank 2 stored with rank 10"),
        ("grey", "data set 'mnist': known here as 'image_folder'"),
    ],
)
def test_the_card_says_what_changed(variant, words, path, tmp_path):
    run = authors.import_run(Theirs(**VARIANTS[variant]).save(path), tmp_path / "run")
    assert words in run.card


def test_a_shared_generator_is_stored_once(path, tmp_path):
    run = authors.import_run(Theirs(use_layer_bias=True).save(path), tmp_path / "run")
    header = read_header(run.files[0])
    assert sum(name.endswith("metric.output.weight") for name in header.shapes) == 1
    assert run.config.model.metric.sharing == "parameters"


def test_a_name_that_means_something_in_markdown_stays_a_name(tmp_path):
    path = tmp_path / "a`|![x](http:example.org)\n.pt"
    run = authors.import_run(Theirs().save(path), tmp_path / "my run!")
    assert "a??![x](http:example.org)?.pt" in run.card
    assert run.config.name == "my-run-"


def test_the_name_of_an_epoch_must_agree_with_the_file(folder, tmp_path):
    (folder / "checkpoint_epoch_9.pt").rename(folder / "checkpoint_epoch_4.pt")
    with pytest.raises(CheckpointError, match=r"epoch_4.pt says that it holds epoch 9: it was re"):
        authors.import_run(folder, tmp_path / "run")


def test_one_epoch_twice_is_refused(folder, tmp_path):
    (folder / "checkpoint_epoch_010.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"epoch_010.pt and .*_10.pt in .* are both epoch 10"):
        authors.import_run(folder, tmp_path / "run")


def test_files_of_two_runs_are_refused_and_nothing_is_left_behind(folder, tmp_path):
    Theirs(off_diag_scale=0.5).save(folder / "checkpoint_epoch_10.pt")
    before = set(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"_10.pt is not of the run of checkpoint_epoch_2.pt"):
        authors.import_run(folder, tmp_path / "run")
    assert set(tmp_path.iterdir()) == before


def test_a_folder_without_their_files_and_a_run_that_exists_are_refused(tmp_path, path):
    with pytest.raises(CheckpointError, match=r"has no checkpoint_epoch_N\.pt"):
        authors.import_run(tmp_path, tmp_path / "run")
    with pytest.raises(CheckpointError, match="already exists; name a new run folder"):
        authors.import_run(path, tmp_path)
    with pytest.raises(CheckpointError, match=r"checkpoint_epoch_10\.pt is missing in"):
        authors.import_run(path, tmp_path / "run")


# ---------------------------------------------------------------- refusals


class Attack:
    """Pickles to a command that leaves a file behind."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


def refused(path, match):
    """Both readers refuse in one sentence, and no run is made."""
    with pytest.raises(CheckpointError, match=match) as caught:
        authors.import_run(path, path.parent / "run")
    message = str(caught.value)
    assert "\n" not in message
    assert "weights_only" not in message
    assert not (path.parent / "run").exists()


def test_code_in_the_pickle_never_runs(path, tmp_path):
    trace = tmp_path / "trace"
    Theirs().save(path, extra=Attack(trace))
    refused(path, "building that could run code, so it is not opened")
    assert not trace.exists()


def test_a_whole_module_is_refused_by_name(path):
    torch.save(nn.Linear(2, 2), path)
    refused(path, "it needs 'torch.nn.modules.linear.Linear'")


def test_a_namespace_is_refused_by_name(path):
    Theirs().save(path, config=argparse.Namespace(**BASE))
    refused(path, r"its 'config' is an argparse.Namespace, not a dictionary; save vars\(args\)")
    torch.save(argparse.Namespace(**BASE), path)
    refused(path, "holds a argparse.Namespace, not the dictionary")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"a": 1, "b": 2}, r"format_version is 2: here it is 'None', and the file holds 'a', 'b'"),
        ({"format_version": 3, "epoch": 1}, "here it is '3'"),
        ({"format_version": 2.0}, "here it is '2.0'"),
        ({"format_version": True}, "here it is 'True'"),
        ([1], "holds a list, not the dictionary"),
        ({"format_version": 2}, "its 'components' is missing"),
        ({"format_version": 2, "components": {}}, "its 'model_state_dict' is missing"),
    ],
)
def test_what_is_no_checkpoint_of_theirs_is_told(path, content, match):
    torch.save(content, path)
    refused(path, match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"d_model": 32}, r"'decoder.pe.pe' has shape \[4096, 16\], but its config asks for"),
        ({"d_ff": 25}, r"'decoder.layers.0.ff.net.0.weight' has shape \[24, 16\].* \[25, 16\]"),
        ({"n_layers": 4}, "lacks 'decoder.layers.3.self_attn.out_proj.weight'"),
        (
            {"n_layers": 2},
            "holds 'decoder.layers.2.self_attn.out_proj.weight', .* and 17 more, which no",
        ),
        ({"n_heads": 5}, "d_model=16 is not divisible by n_heads=5"),
        ({"n_heads": 2}, "'decoder.shared_mlp_module.diag_mask' is not the mask of 2 heads"),
        ({"share_mlp": False}, "lacks 'decoder.layers.0.self_attn._own_mlp.mlp.0.weight'"),
        ({"use_mlp": False}, "lacks 'decoder.layers.0.self_attn.M0'"),
        ({"use_M": False}, "lacks 'decoder.layers.0.self_attn.W_q.weight'"),
        ({"use_M": 1}, "its config has use_M='1', which is not of type bool"),
        ({"d_model": "16"}, "has d_model='16', which is not of type int"),
        (
            {"d_model": 10**9},
            r"'decoder.pe.pe' has shape \[4096, 16\], but .* \[4096, 1000000000\]",
        ),
        ({"mlp_hidden": (16384,) * 9}, "weights, more than the 2,000,000,000 that damcha accepts"),
        ({"mlp_hidden": 7}, "has mlp_hidden='7', not a tuple of int"),
        ({"mlp_hidden": (7.5,)}, "not a tuple of int"),
        ({"mlp_hidden": (0,)}, "greater than or equal to 1"),
        ({"off_diag_mode": "quantum"}, "off_diag_mode='quantum' is not known; known are mlp, lin"),
        ({"off_diag_mode": "separate_B"}, "lacks 'decoder.shared_mlp_module.B'"),
        ({"off_diag_scale": float("nan")}, "finite"),
        ({"off_diag_scale": "0"}, "not of type float"),
        ({"use_layer_bias": True, "layer_bias_rank": 0}, "layer_bias_rank=0"),
        ({"baseline": "dcmha"}, "lacks 'decoder.layers.0.self_attn.W_q.weight'"),
        (
            {"baseline": "flash"},
            "its baseline 'flash' is not known; known are tha, mma, dcmha",
        ),
        ({"baseline": ["tha"]}, r"its baseline \"\['tha'\]\" is not known"),
        ({"patch_size": 2}, r"'proj.weight' has shape \[16, 48\]"),
        ({"patch_size": 5}, "image_size=16 is not divisible by patch_size=5"),
        ({"in_ch": 4}, "in_ch=4, not 1 or 3"),
        ({"img_size": 512}, r"has 4096 positions, fewer than the 16384 tokens"),
        ({"lr": -1.0}, "lr: input should be greater than 0"),
    ],
)
def test_a_config_that_is_not_the_weights_own_is_refused(path, changes, match):
    theirs = Theirs()
    theirs.save(path, config={**theirs.c, **changes})
    refused(path, match)


@pytest.mark.parametrize("key", ["d_model", "n_heads", "d_ff", "n_layers", "use_M", "dataset"])
def test_a_config_that_lacks_a_setting_is_refused(path, key):
    theirs = Theirs()
    theirs.save(path, config={name: value for name, value in theirs.c.items() if name != key})
    refused(path, f"its config lacks '{key}'")


@pytest.mark.parametrize("epoch", [0, -1, 2.0, True, None, "3"])
def test_an_epoch_that_is_none_is_refused(path, epoch):
    Theirs().save(path, epoch=epoch)
    refused(path, "its epoch is .*; they count from 1")


def test_components_that_are_missing_or_too_many_are_refused(path):
    theirs = Theirs()
    theirs.save(path, components={"head": theirs.parts["head"]})
    refused(path, "lacks the patch or token embedding: its components are 'head'")
    theirs.save(path, components={"patcher": theirs.parts["patcher"]})
    refused(path, "lacks the head: its components are 'patcher'")
    theirs.save(path, components={**theirs.parts, "extra": {"w": torch.ones(2)}})
    refused(path, "holds 'w', which no model of its config has")
    theirs.save(path, components={**theirs.parts, "head": 3})
    refused(path, "its 'components.head' is a int, not a dictionary of names")


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (torch.full((16, 16), torch.nan), "256 of the 256 numbers of .*W_v.weight' are NaN or inf"),
        (torch.ones(16, 16, dtype=torch.int64), "holds torch.int64, not floating-point weights"),
        (torch.ones(1).expand(10**6, 10**6), "claims 1,000,000,000,000 numbers, more than are st"),
        (torch.eye(16).to_sparse(), "is not a plain tensor"),
        ("weights", "is not a plain tensor"),
        (torch.ones(16), r"has shape \[16\], but its config asks for \[16, 16\]"),
    ],
)
def test_a_tensor_that_is_none_is_refused(path, tensor, match):
    theirs = Theirs()
    theirs.w["decoder.layers.1.self_attn.W_v.weight"] = tensor
    torch.save({**Theirs().content(), "model_state_dict": theirs.w}, path)
    refused(path, match)


def test_a_router_of_a_rank_that_ours_has_not_is_refused(path):
    theirs = Theirs(d_model=20, n_heads=10, **VARIANTS["dcmha"])
    theirs.save(path)
    refused(path, "'dcmha' of 10 heads has a router of rank 5, and damcha's has rank 4; up to 9 he")


def test_copies_of_the_shared_generator_that_differ_are_refused(path):
    theirs = Theirs()
    name = "decoder.layers.2.self_attn._shared_mlp.mlp.0.bias"
    theirs.w[name] = theirs.w[name] + 1
    torch.save({**Theirs().content(), "model_state_dict": theirs.w}, path)
    refused(path, "'decoder.layers.2.*' differs from 'decoder.shared_mlp_module.mlp.0.bias'")


def test_a_wrapped_model_of_another_precision_opens(path, tmp_path):
    theirs = Theirs()
    wrapped = {f"module.{name}": value.double() for name, value in theirs.w.items()}
    run = authors.import_run(theirs.save(path, model_state_dict=wrapped), tmp_path / "run")
    assert run.stored_dtypes() == ("F32",)


def test_losses_that_are_no_numbers_are_left_out(path, tmp_path):
    run = authors.import_run(
        Theirs().save(path, loss=float("nan"), best_loss="x"), tmp_path / "run"
    )
    assert run.metrics == ({"epoch": 9},)
    assert "| 9 | 10 | - |" in run.card


# ---------------------------------------------------------------- version 1


def old_content(mode="mlp", bias=True, shared=True, heads=2, d=6, layers=2):
    """A version-1 file, and M of each layer by loops."""
    generator = torch.Generator().manual_seed(1)

    def new(*shape):
        return torch.randn(shape, generator=generator)

    e, state, expected = d // heads, {}, []
    prefixes = ["decoder.shared_mlp_module."] if shared else [
        f"decoder.layers.{i}.self_attn._own_mlp." for i in range(layers)
    ]  # fmt: skip
    for prefix in prefixes:
        state[f"{prefix}input_embedding"] = new(d)
        state[f"{prefix}diag_block_weights"] = torch.ones(heads)
        out = 2 * d * 2 if mode == "compact" else d * d
        for place, (n_in, n_out) in enumerate(((d, 5), (5, out))):
            state[f"{prefix}mlp.{3 * place}.weight"] = new(n_out, n_in)
            state[f"{prefix}mlp.{3 * place}.bias"] = new(n_out)
        mask = torch.block_diag(*[torch.ones(e, e)] * heads)
        state[f"{prefix}diag_mask"], state[f"{prefix}off_diag_mask"] = mask, 1 - mask
        if mode == "linear_comb":
            state[f"{prefix}off_diag_alpha"] = new(heads, heads, heads)
        if mode == "separate_B":
            state[f"{prefix}B"] = new(heads, e, d)
        if bias:
            state[f"{prefix}layer_bias_U"], state[f"{prefix}layer_bias_V"] = new(d, 2), new(d, 2)
            state[f"{prefix}layer_scales"] = new(layers, 2)
    for i in range(layers):
        state[f"decoder.layers.{i}.self_attn.M0"] = new(d, d)
        state[f"decoder.layers.{i}.self_attn.W_v.weight"] = new(d, d)
        p = prefixes[0] if shared else prefixes[i]
        x = gelu(linear(state[f"{p}input_embedding"], state[f"{p}mlp.0.weight"],
                        state[f"{p}mlp.0.bias"]))  # fmt: skip
        x = linear(x, state[f"{p}mlp.3.weight"], state[f"{p}mlp.3.bias"])
        if mode == "compact":
            u, v = x.reshape(2, d, 2)
            metric = u @ v.T / math.sqrt(2)
        else:
            raw = x.reshape(d, d)
            metric = raw.clone()
            for a in range(heads):
                for b in range(heads):
                    rows, columns = slice(a * e, a * e + e), slice(b * e, b * e + e)
                    if a == b:
                        continue
                    other = raw[rows, columns]
                    if mode == "linear_comb":
                        alpha = state[f"{p}off_diag_alpha"][a, b]
                        other = sum(
                            alpha[k] * raw[k * e : k * e + e, k * e : k * e + e]
                            for k in range(heads)
                        )
                    if mode == "separate_B":
                        other = state[f"{p}B"][a][:, columns]
                    metric[rows, columns] = 0.25 * other
        if bias:
            u, v = state[f"{p}layer_bias_U"], state[f"{p}layer_bias_V"]
            metric = metric + u @ torch.diag(state[f"{p}layer_scales"][i]) @ v.T
        expected.append(metric)
    content = {
        "epoch": 3, "loss": 0.5, "model_state_dict": state, "optimizer_state_dict": {},
        "off_diag_params": {"off_diag_mode": mode, "off_diag_scale": 0.25},
    }  # fmt: skip
    return content, torch.stack(expected)


@pytest.mark.parametrize("mode", ["mlp", "linear_comb", "separate_B", "compact"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_metric_of_a_version_1_file_is_shown(path, mode, bias, shared):
    content, expected = old_content(mode, bias, shared)
    torch.save(content, path)
    old = authors.read_old_metrics(path)
    assert old.n_heads == 2
    torch.testing.assert_close(torch.from_numpy(old.metrics), expected, rtol=0, atol=1e-5)


def test_the_constant_metric_of_a_version_1_file_is_shown(path):
    content, _ = old_content()
    state = content["model_state_dict"]
    content["model_state_dict"] = {k: v for k, v in state.items() if "shared_mlp" not in k}
    torch.save(content, path)
    old = authors.read_old_metrics(path)
    assert old.n_heads is None
    assert torch.equal(torch.from_numpy(old.metrics[1]), state["decoder.layers.1.self_attn.M0"])


def test_a_version_1_file_is_explained_and_not_run(path):
    content, _ = old_content()
    torch.save(content, path)
    refused(path, "this is a version-1 checkpoint: it lacks the head and the embedding, and made M")
    with pytest.raises(CheckpointError, match="this is a version-1 checkpoint"):
        authors.open_stack(path)


def test_what_is_no_version_1_file_with_a_metric_is_refused(path):
    with pytest.raises(CheckpointError, match="is not a version-1 checkpoint"):
        authors.read_old_metrics(Theirs().save(path))
    content, _ = old_content()
    state = content["model_state_dict"]
    torch.save({**content, "model_state_dict": {"a": torch.ones(2)}}, path)
    with pytest.raises(CheckpointError, match="is of version 1 and holds no metric M"):
        authors.read_old_metrics(path)
    state["decoder.shared_mlp_module.mlp.3.bias"] = torch.ones(7)
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="M of layer 0 cannot be made"):
        authors.read_old_metrics(path)
    state["decoder.shared_mlp_module.mlp.3.bias"] = torch.full((36,), torch.nan)
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="has a non-finite metric M"):
        authors.read_old_metrics(path)


# ---------------------------------------------------------------- the command and the dashboard


def command(*words):
    return CliRunner().invoke(main, ["import", *map(str, words)])


def test_the_command_says_what_it_made(folder, tmp_path):
    result = command(folder, "--out", tmp_path / "theirs")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == (
        f"{tmp_path / 'theirs'}: damcha (mlp, sharing stack), 3 layers of width 16, "
        f"{open_run(tmp_path / 'theirs').n_weights():,} weights, epochs 1, 8, 9"
    )
    assert lines[1].startswith("- patches reordered")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["name"] == "theirs"


def test_the_command_writes_the_metric_of_a_version_1_file(path, tmp_path):
    content, expected = old_content()
    torch.save(content, path)
    result = command(path, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "this is a version-1 checkpoint" in result.output
    result = command(path, "--old-metrics", tmp_path / "m.npz")
    assert result.output == f"{tmp_path / 'm.npz'}: M of 2 layers, 6 wide\n"
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        np.testing.assert_allclose(file["metrics"], expected.numpy(), atol=1e-5)
        assert file["n_heads"] == 2


def test_the_command_needs_a_place(path):
    result = command(Theirs().save(path))
    assert result.exit_code == 2
    assert "--out: name the run folder to make" in result.output


@pytest.mark.parametrize("variant", ["shared", "unshared", "static", "dcmha", "moa"])
def test_the_dashboard_opens_an_imported_run(variant, tmp_path, monkeypatch):
    from PIL import Image

    theirs = Theirs(**VARIANTS[variant])
    run = authors.import_run(theirs.save(tmp_path / "x.pt"), tmp_path / "runs" / "theirs")
    monkeypatch.setenv("DAMCHA_RUNS", str(tmp_path / "runs"))
    dashboard = Path(__file__).resolve().parents[3] / "app" / "dashboard.py"
    at = AppTest.from_file(str(dashboard), default_timeout=60).run()
    assert not at.exception
    assert not at.error
    (run.path / "samples").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(run.path / "samples" / "a.png")
    for page in ("inspect", "runs", "epochs"):
        at = AppTest.from_file(str(dashboard), default_timeout=60)
        if page != "inspect":
            at.switch_page(f"views/{page}.py")
        at.run()
        assert not at.exception
        assert not at.error
        if page == "inspect":
            shown = {element.proto.component_name for element in at.get("bidi_component")}
            assert any(name.endswith("damcha_figure") for name in shown)


@pytest.fixture
def uploads(tmp_path, monkeypatch):
    """``uploads(files, **fields)``: the Runs page after these were given there and imported."""
    runs = tmp_path / "runs"
    authors.import_run(Theirs().save(tmp_path / "first.pt"), runs / "first")
    monkeypatch.setenv("DAMCHA_RUNS", str(runs))
    monkeypatch.setenv("DAMCHA_BOARDS", str(tmp_path / "boards"))
    dashboard = Path(__file__).resolve().parents[3] / "app" / "dashboard.py"

    def give(files, tokenizer=None, **fields):
        at = AppTest.from_file(str(dashboard), default_timeout=60)
        at.switch_page("views/runs.py")
        at.run()
        given = [(file.name, file.read_bytes(), "application/octet-stream") for file in files]
        at.file_uploader(key="import-files").set_value(given)
        if tokenizer is not None:
            words = (tokenizer.name, tokenizer.read_bytes(), "application/json")
            at.file_uploader(key="import-tokenizer").set_value(words)
        for name, value in fields.items():
            at.text_input(key=name).set_value(value)
        at.run()
        next(button for button in at.button if button.label == "Import").click()
        at.run()
        assert not at.exception
        return at

    return give


def said(at):
    return "\n".join(one.value for one in (*at.error, *at.success, *at.info)).replace("\\", "")


def test_the_dashboard_takes_a_checkpoint(uploads, tmp_path):
    theirs = Theirs(share_mlp=False)
    at = uploads([theirs.save(tmp_path / "unshared_depth3.pt")])
    assert "unshared_depth3 is among the runs." in said(at) and not at.error
    assert any("patches reordered" in code.value for code in at.code)
    next(button for button in at.button if button.label == "Open it").click()
    at.run()
    assert at.selectbox(key="run").value == "unshared_depth3"
    pixels = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(2)) * 2 - 1
    made = open_run(tmp_path / "runs" / "unshared_depth3").load(device="cpu")(pixels)
    again = authors.import_run(tmp_path / "unshared_depth3.pt", tmp_path / "again")
    assert torch.equal(made, again.load(device="cpu")(pixels))


def test_the_dashboard_takes_all_epochs_of_a_run(uploads, folder, tmp_path):
    files = [folder / f"checkpoint_epoch_{n}.pt" for n in (10, 2, 9)]
    at = uploads(files, import_name="mine")
    assert "mine is among the runs." in said(at)
    assert open_run(tmp_path / "runs" / "mine").epochs == (1, 8, 9)
    (tmp_path / "b.pt").write_bytes(files[0].read_bytes())
    at = uploads([files[0], tmp_path / "b.pt"], import_name="other")
    assert "'b.pt': several files are epochs of one run" in said(at)
    at = uploads([files[0], files[0]], import_name="other")
    assert "'checkpoint_epoch_10.pt' is there twice" in said(at)


def test_the_dashboard_takes_a_model_of_text_with_its_tokenizer(uploads, tmp_path):
    word_pieces(tmp_path / "tokenizer.json")
    path = Theirs(symbols=24, dataset="elsewhere").save(tmp_path / "text.pt")
    at = uploads([path])
    assert "does not tell which symbol begins a text" in said(at)
    assert not (tmp_path / "runs" / "text").exists()
    at = uploads([path], tmp_path / "tokenizer.json")
    assert "text is among the runs." in said(at)
    at = uploads([path], import_name="numbers", import_first="2")
    next(button for button in at.button if button.label == "Open it").click()
    at.run()
    at.switch_page("views/inspect.py")
    at.run()
    assert at.text_area(key="text").placeholder == "Numbers of symbols, such as 5 17 8"
    at.text_area(key="text").set_value("4 5 6").run()
    assert not at.error and not at.exception
    at.text_area(key="text").set_value("a dog").run()
    assert "'a' is no symbol: this run has no tokenizer" in said(at)
    assert "is no number of a symbol" in said(uploads([path], import_name="x", import_first="-2"))


def test_the_dashboard_shows_the_metric_of_a_version_1_file(uploads, tmp_path):
    content, expected = old_content()
    torch.save(content, tmp_path / "old.pt")
    at = uploads([tmp_path / "old.pt"])
    assert "This is a version-1 checkpoint" in said(at) and not at.error
    for layer in (0, 1):
        at.button_group(key="old_layer").set_value(layer).run()
        element = next(one for one in at.get("bidi_component") if one.key == "old-metric")
        _, values = from_canvas(element.proto.bytes)
        np.testing.assert_allclose(values[0][-1], expected[layer].numpy(), atol=1e-5)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first"]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"no checkpoint", "x", "x.pt is not a whole torch.save archive"),
        (pickle.dumps(os.system), "x", "x.pt is not a whole torch.save archive"),
        (b"", "x", "x.pt is not a whole torch.save archive"),
        (None, "first", "There is a run 'first' already; choose another name"),
        (None, "../up", "'../up' cannot name a run"),
        (None, ".hidden", "'.hidden' cannot name a run"),
    ],
)
def test_the_dashboard_refuses_in_a_sentence(content, name, message, uploads, tmp_path):
    path = tmp_path / "x.pt"
    if content is None:
        Theirs().save(path)
    else:
        path.write_bytes(content)
    at = uploads([path], import_name=name)
    assert len(at.error) == 1 and message in said(at)
    assert "fault of this program" not in said(at)
    assert {entry.name for entry in (tmp_path / "runs").iterdir()} == {"first"}


def test_the_dashboard_leaves_the_disk_some_room(uploads, tmp_path, monkeypatch):
    path = Theirs().save(tmp_path / "x.pt")
    monkeypatch.setattr("app.imports.SPARED_BYTES", 1 << 60)
    assert "disk is nearly full" in said(uploads([path]))
    assert {entry.name for entry in (tmp_path / "runs").iterdir()} == {"first"}
