"""The stack and the four task models, on tiny sizes."""

import math

import pytest
import torch
import torch.nn.functional as F

from damcha.attention import ATTENTIONS
from damcha.config import TASKS, MetricConfig, ModelConfig
from damcha.errors import InputError
from damcha.model import MODELS, Stack, build_model, patchify, unpatchify
from damcha.tap import tap

EXACT = {"rtol": 0, "atol": 1e-12}
AUTOREGRESSIVE = ["image_autoregression", "language_modelling"]
# Settings that change how a step is decoded.
VARIANTS = {
    "stack": {},
    "every step": {"context_stride": 1},
    "long stride": {"context_stride": 50},
    "parameters": {"sharing": "parameters"},
    "unshared": {"sharing": "none", "context_stride": 3},
    "bilinear": {"aggregation": "bilinear"},
    "static": {"generator": "static", "context_stride": 1},
    "mha": {"attention": "mha"},
    "rotary": {"positions": "rotary"},
    "rotary bilinear": {"positions": "rotary", "aggregation": "bilinear"},
    "rotary mha": {"positions": "rotary", "attention": "mha"},
    "sinusoidal post": {"positions": "sinusoidal", "norm": "post"},
    "no positions": {"positions": "none"},
    "layer bias": {"layer_bias_rank": 2},
    "psd": {"constraint": "psd", "rank": 3},
    "low rank": {"constraint": "low_rank", "rank": 2, "sharing": "none"},
    "separate": {"off_diagonal": "separate"},
    "mixing": {"mixing": "layer", "positions": "rotary"},
    "shared mixing": {"mixing": "shared", "sharing": "parameters"},
    "bilinear mixing": {"mixing": "layer", "aggregation": "bilinear", "sharing": "none"},
    "query norm": {"query_norm": "rms", "mixing": "layer", "positions": "rotary"},
    "groups": {"sharing": "groups", "group_layers": 2, "n_layers": 4, "layer_bias_rank": 1},
    "groups, mixing": {
        "sharing": "groups", "group_layers": 2, "n_layers": 4, "mixing": "layer",
        "aggregation": "bilinear", "positions": "rotary",
    },
    "groups, attention residuals": {
        "sharing": "groups", "group_layers": 1, "residual": "attention"
    },
    "static groups": {
        "sharing": "groups", "group_layers": 1, "generator": "static", "context_stride": 1
    },
    "decays": {"context_decays": (0.5, 0.9)},
    "first tokens": {"context_first": 3, "sharing": "none"},
    "wide context": {
        "context_decays": (0.7,), "context_first": 2, "sharing": "parameters",
        "aggregation": "bilinear",
    },
    "tha": {"attention": "tha", "mix_bias": True},
    "dcmha": {"attention": "dcmha", "qk_norm": True},
    "colmha": {"attention": "colmha", "shared_width": 24},
    "mma": {"attention": "mma", "local_window": 2},
    "moa": {"attention": "moa", "n_experts": 5},
    "budgetformer": {"attention": "budgetformer"},
    "iha": {"attention": "iha", "pseudo_heads": 3},
    "rotary iha": {"attention": "iha", "positions": "rotary"},
    "attention residuals": {"attention": "mha", "residual": "attention"},
    "multi-head attention residuals": {"residual": "mhar"},
}  # fmt: skip


def images(batch=2, seed=0, channels=1, size=12):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, channels, size, size, generator=generator, dtype=torch.float64) * 2 - 1


def text(batch=2, length=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, length), generator=generator)


def inputs_of(task, **options):
    if task == "sequence_to_sequence":  # 5 symbols, SEPARATOR, 2 symbols, END, PAD
        x = text(**options)
        x[:, 5], x[:, 8], x[:, 9] = 256, 257, 258
        return x
    return text(**options) if task == "language_modelling" else images(**options)


# ---------------------------------------------------------------- patches


def test_patches_go_row_by_row_each_in_row_column_channel_order():
    images = torch.arange(2.0 * 4 * 4).view(1, 2, 4, 4)
    patches = patchify(images, 2)
    assert patches.shape == (1, 4, 8)
    # top right patch: rows 0-1, columns 2-3, both channels of each pixel together
    expected = [images[0, c, r, k].item() for r in (0, 1) for k in (2, 3) for c in (0, 1)]
    assert patches[0, 1].tolist() == expected


@pytest.mark.parametrize(
    ("size", "patch", "channels"), [(4, 2, 3), (12, 4, 1), (6, 6, 3), (5, 1, 1)]
)
def test_patches_there_and_back(size, patch, channels):
    x = images(3, channels=channels, size=size)
    assert torch.equal(unpatchify(patchify(x, patch), patch, channels), x)


# ---------------------------------------------------------------- the four models


OUTPUTS = {
    "image_autoregression": (2, 9, 16),
    "image_reconstruction": (2, 9, 16),
    "language_modelling": (2, 10, 256),
    "sequence_to_sequence": (2, 10, 259),
    "image_classification": (2, 10),
}


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("task", TASKS)
def test_outputs(task_model, task, attention):
    model = task_model(task, attention=attention)
    x = inputs_of(task)
    assert type(model) is MODELS[task]
    assert model(x).shape == OUTPUTS[task]
    kind = ATTENTIONS[attention]
    assert sum(isinstance(module, kind) for module in model.modules()) == 2


@pytest.mark.parametrize("task", TASKS)
def test_loss_is_the_mean_over_examples_and_trains_every_weight(task_model, task):
    model = task_model(task).requires_grad_(True)
    x, labels = inputs_of(task), torch.tensor([3, 9])
    scores = model.score(x, labels)
    loss = model.loss(x, labels)
    assert scores["loss"].shape == (2,)
    torch.testing.assert_close(loss, scores["loss"].mean(), **EXACT)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_autoregression_loss_is_the_squared_error_of_each_patch(task_model):
    model, x = task_model(), images()
    expected = ((model(x) - patchify(x, 4)) ** 2).mean((1, 2))
    torch.testing.assert_close(model.score(x, x)["loss"], expected, **EXACT)


def test_language_loss_is_the_likelihood_of_each_byte_in_nats(task_model):
    model, x = task_model("language_modelling"), text()
    log_p = model(x).log_softmax(-1)
    expected = -torch.stack([log_p[b, torch.arange(10), x[b]].mean() for b in range(2)])
    torch.testing.assert_close(model.score(x, x)["loss"], expected, **EXACT)


def test_an_indifferent_language_model_pays_log_256(task_model):
    model = task_model("language_modelling")
    for parameter in model.head.parameters():
        parameter.zero_()
    assert model.loss(text(), text()).item() == pytest.approx(math.log(256), abs=1e-12)


def test_classification_scores(task_model):
    model, x = task_model("image_classification"), images()
    logits = model(x)
    labels = torch.stack((logits[0].argmax(), logits[1].argmin()))
    scores = model.score(x, labels)
    assert scores["accuracy"].tolist() == [1.0, 0.0]
    expected = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(scores["loss"], expected, **EXACT)


@pytest.mark.parametrize("causal", [True, False])
def test_classifiers_and_reconstructors_may_see_everything(task_model, causal):
    settings = {"causal": causal, "context": "causal" if causal else "full"}
    settings |= {} if causal else {"context_stride": 1}
    assert task_model("image_classification", **settings)(images()).isfinite().all()
    assert task_model("image_reconstruction", **settings)(images()).isfinite().all()


class TestReconstruction:
    def test_hidden_patches_are_not_seen(self, task_model):
        model, x = task_model("image_reconstruction"), images()
        changed = x.clone()
        changed[:, :, 8:] = 7  # the lower half of three rows: the last one
        torch.testing.assert_close(model(changed), model(x), **EXACT)
        changed[:, :, :8] = 7
        assert not torch.allclose(model(changed), model(x))

    def test_only_hidden_patches_count(self, task_model):
        model, x = task_model("image_reconstruction"), images()
        error = (model(x) - patchify(x, 4)) ** 2
        torch.testing.assert_close(model.score(x, x)["loss"], error[:, 6:].mean((1, 2)), **EXACT)

    def test_a_mask_of_ones_own(self, task_model):
        model, x = task_model("image_reconstruction"), images()
        nothing = torch.zeros(2, 9, dtype=torch.bool)
        assert not torch.allclose(model(x, nothing), model(x))
        assert torch.equal(model(x, model.default_mask(2, x.device)), model(x))

    def test_training_hides_random_rows(self, task_model):
        model, x = task_model("image_reconstruction", seed=1).train(), images()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            losses = {round(model.loss(x, x).item(), 9) for _ in range(12)}
        assert len(losses) > 3


# ---------------------------------------------------------------- causality and decoding


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", AUTOREGRESSIVE)
def test_a_prediction_depends_on_the_past_only(task_model, task, variant):
    """Prediction t may change when token t-1 does, and never when token t or a later one does."""
    model = task_model(task, **VARIANTS[variant])
    if task == "language_modelling":
        x, change = text(1), lambda x, t: x.index_fill(1, torch.tensor([t]), (x[0, t] + 1) % 256)
    else:
        x = images(1)

        def change(x, t):
            patches = patchify(x, 4).clone()
            patches[:, t] *= -1
            return unpatchify(patches, 4, 1)

    plain = model(x)
    for t in range(plain.shape[1]):
        out = model(change(x, t))
        torch.testing.assert_close(out[:, : t + 1], plain[:, : t + 1], **EXACT)
        if t + 1 < plain.shape[1]:
            assert not torch.allclose(out[:, t + 1], plain[:, t + 1])


@pytest.mark.parametrize("known", [0, 1, 5, 9])
@pytest.mark.parametrize("variant", VARIANTS)
def test_generated_images_are_the_predictions_of_the_full_forward(task_model, variant, known):
    model, x = task_model(**VARIANTS[variant]), images()
    prompt = patchify(x, 4)[:, :known]
    result = model.generate(prompt)
    assert result.shape == (2, 9, 16)
    assert torch.equal(result[:, :known], prompt)
    again = model(unpatchify(result, 4, 1))
    torch.testing.assert_close(again[:, known:], result[:, known:], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("known", [0, 1, 6])
@pytest.mark.parametrize("variant", VARIANTS)
def test_generated_text_is_the_likeliest_of_the_full_forward(task_model, variant, known):
    model = task_model("language_modelling", **VARIANTS[variant])
    prompt = text(length=known) if known else torch.zeros(2, 0, dtype=torch.int64)
    result = model.generate(prompt, 10 - known)
    assert torch.equal(result[:, :known], prompt)
    assert torch.equal(model(result).argmax(-1)[:, known:], result[:, known:])


def test_next_byte_is_the_last_logit_of_a_longer_text(task_model):
    model, x = task_model("language_modelling"), text()
    for known in (0, 4, 9):
        expected = model(x[:, : known + 1])[:, -1]
        torch.testing.assert_close(model.next_logits(x[:, :known]), expected, **EXACT)


def test_sampling_follows_its_generator(task_model):
    model, prompt = task_model("language_modelling"), text(length=2)

    def sample(seed, temperature):
        return model.generate(
            prompt, 8, temperature=temperature, generator=torch.Generator().manual_seed(seed)
        )

    assert torch.equal(sample(0, 1.0), sample(0, 1.0))
    assert not torch.equal(sample(0, 1.0), sample(1, 1.0))
    assert torch.equal(sample(0, 1e-6), model.generate(prompt, 8))


def test_generating_nothing(task_model):
    prompt = text(length=4)
    assert torch.equal(task_model("language_modelling").generate(prompt, 0), prompt)
    patches = patchify(images(), 4)
    assert torch.equal(task_model().generate(patches), patches)


@pytest.mark.parametrize("variant", VARIANTS)
def test_stack_in_pieces_with_pads_is_the_stack_at_once(task_model, normal, variant):
    stack = task_model(**VARIANTS[variant]).stack
    x = normal(2, 9, 16)
    pads = torch.zeros(2, 9, dtype=torch.bool)
    pads[0, :2] = pads[1, 4] = pads[1, 7:] = True
    x = x.masked_fill(pads[..., None], float("nan"))
    cache, pieces = stack.new_cache(), []
    for start, stop in ((0, 1), (1, 4), (4, 5), (5, 9)):
        pieces.append(stack(x[:, start:stop], pads[:, start:stop], cache))
    full = stack(x, pads)
    assert full.isfinite().all()
    torch.testing.assert_close(torch.cat(pieces, 1)[~pads], full[~pads], **EXACT)


# ---------------------------------------------------------------- sharing


def generators(model):
    return {name.rpartition(".metric")[0] for name in model.state_dict() if "metric.output" in name}


def test_one_generator_for_the_stack(task_model):
    model = task_model(sharing="stack")
    assert generators(model) == {"stack"}


def test_one_generator_that_every_layer_runs(task_model):
    model = task_model(sharing="parameters")
    first, second = (layer.attention.metric for layer in model.stack.layers)
    assert first is second
    assert model.stack.metric is None


def test_a_generator_for_each_layer(task_model):
    model = task_model(sharing="none")
    first, second = (layer.attention.metric for layer in model.stack.layers)
    assert first is not second
    with tap(model) as capture:
        model(images())
    assert not torch.equal(capture.records[0].metric, capture.records[1].metric)


def test_a_metric_for_each_group(task_model):
    model = task_model(sharing="groups", group_layers=2, n_layers=4)
    assert model.stack.metric is None and len(model.stack.groups) == 2
    with tap(model, record=("inputs",)) as capture:
        model(images())
    assert [record.layer for record in capture.records] == [0, 1, 2, 3]
    first, second, third, fourth = (record.metric for record in capture.records)
    assert torch.equal(first, second) and torch.equal(third, fourth)
    assert not torch.equal(first, third)
    # What a group's generator is given is what its first block reads.
    for record, layer in zip(capture.records[::2], (0, 2), strict=True):
        block = model.stack.layers[layer]
        read = record.context[:, 0]  # the mean of one token
        torch.testing.assert_close(block.norm1(read), capture.inputs[layer][:, 0], **EXACT)


def test_a_group_of_all_layers_is_the_stack(task_model):
    one, all_ = task_model(sharing="stack"), task_model(sharing="groups", group_layers=2)
    state = {k.replace("stack.metric.", "stack.groups.0."): v for k, v in one.state_dict().items()}
    all_.load_state_dict(state)
    assert torch.equal(one(images()), all_(images()))


def test_layers_know_their_place(task_model):
    assert [layer.attention.layer for layer in task_model().stack.layers] == [0, 1]


# ---------------------------------------------------------------- names on disk


BLOCK = [
    "attention.out_proj.weight", "attention.out_proj.bias", "attention.value_proj.weight",
    "attention.value_proj.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias",
    "ff.0.weight", "ff.0.bias", "ff.3.weight", "ff.3.bias",
]  # fmt: skip
GENERATOR = [
    "hidden.0.weight", "hidden.0.bias", "hidden.2.weight", "hidden.2.bias",
    "output.weight", "output.bias",
]  # fmt: skip
ENDS = ["stack.norm.weight", "stack.norm.bias", "positions.table"]
PIXELS = [
    "embed.weight", "embed.bias", "head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias",
]  # fmt: skip
LINEAR_HEAD = ["head.weight", "head.bias"]
AROUND = {
    "image_autoregression": ["start", *PIXELS],
    "image_reconstruction": PIXELS,
    "language_modelling": ["embed.weight", *LINEAR_HEAD],
    "sequence_to_sequence": ["embed.weight", *LINEAR_HEAD],
    "image_classification": ["embed.weight", "embed.bias", *LINEAR_HEAD],
}


@pytest.mark.parametrize("task", TASKS)
def test_state_dict_names_are_pinned(task_model, task):
    """Shipped weights are loaded by these names: a change here needs a patch for old files."""
    names = set(task_model(task).state_dict())
    assert names == {
        *(f"stack.metric.{name}" for name in GENERATOR),
        *(f"stack.layers.{i}.{name}" for i in (0, 1) for name in BLOCK),
        *ENDS,
        *AROUND[task],
    }


@pytest.mark.parametrize("sharing", ["parameters", "none"])
def test_state_dict_names_of_unshared_metrics(task_model, sharing):
    names = set(task_model(sharing=sharing).state_dict())
    generators = {f"stack.layers.{i}.attention.metric.{name}" for i in (0, 1) for name in GENERATOR}
    assert generators <= names
    assert not any(name.startswith("stack.metric") for name in names)


def test_state_dict_names_of_mha_and_static(task_model):
    mha = set(task_model(attention="mha").state_dict())
    assert {f"stack.layers.0.attention.in_proj_{kind}" for kind in ("weight", "bias")} <= mha
    static = set(task_model(generator="static", context_stride=1).state_dict())
    assert {name for name in static if "metric" in name} == {"stack.metric.constant"}


@pytest.mark.parametrize("settings", [{"norm": "post"}, {"positions": "rotary"}], ids=str)
def test_parts_without_weights(task_model, settings):
    names = set(task_model(**settings).state_dict())
    missing = "stack.norm.weight" if "norm" in settings else "positions.table"
    assert missing not in names


@pytest.mark.parametrize("task", TASKS)
def test_state_dict_round_trip(task_model, task):
    one, two, x = task_model(task, seed=1), task_model(task, seed=2), inputs_of(task)
    assert not torch.equal(one(x), two(x))
    two.load_state_dict(one.state_dict(), strict=True)
    assert torch.equal(one(x), two(x))


def test_a_seed_gives_the_same_start(task_config):
    states = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            states.append(build_model(task_config()).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


# ---------------------------------------------------------------- errors and edges


class TestErrors:
    @pytest.mark.parametrize(
        "task", ["image_autoregression", "image_reconstruction", "image_classification"]
    )
    @pytest.mark.parametrize("shape", [(1, 3, 12, 12), (1, 1, 8, 12), (1, 12, 12)])
    def test_images_of_another_shape(self, task_model, task, shape):
        message = r"images have shape \(1, .*\); this model takes \(batch, 1, 12, 12\)"
        with pytest.raises(InputError, match=message):
            task_model(task)(torch.zeros(shape, dtype=torch.float64))

    @pytest.mark.parametrize("shape", [(1, 0), (1, 11), (5,)])
    def test_text_of_another_shape(self, task_model, shape):
        message = r"text has shape \(.*\); this model takes \(batch, 1 to 10\)"
        with pytest.raises(InputError, match=message):
            task_model("language_modelling")(torch.zeros(shape, dtype=torch.int64))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
    def test_text_that_is_not_int64(self, task_model, dtype):
        with pytest.raises(InputError, match=f"text must be int64 bytes, not {dtype}; use"):
            task_model("language_modelling")(torch.zeros(1, 3, dtype=dtype))

    @pytest.mark.parametrize("wrong", [-1, 256])
    def test_text_that_is_not_bytes(self, task_model, wrong):
        x = torch.tensor([[65, wrong]])
        message = f"text holds numbers from {min(65, wrong)} to {max(65, wrong)}; bytes are 0 to 2"
        with pytest.raises(InputError, match=message):
            task_model("language_modelling")(x)

    def test_too_much_text_to_generate(self, task_model):
        model = task_model("language_modelling")
        with pytest.raises(InputError, match="4 bytes and 7 more exceed this model's 10 bytes"):
            model.generate(text(length=4), 7)
        with pytest.raises(InputError, match="4 bytes and -1 more exceed"):
            model.generate(text(length=4), -1)
        with pytest.raises(InputError, match="10 bytes and 1 more exceed this model's 10 bytes"):
            model.next_logits(text())

    def test_too_many_patches_to_generate(self, task_model):
        prompt = patchify(images(), 4)
        with pytest.raises(InputError, match="9 patches and 1 more do not fit an image of 9 patch"):
            task_model().generate(prompt, 1)
        with pytest.raises(InputError, match="9 patches and -2 more do not fit"):
            task_model().generate(prompt, -2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_token(normal, randomise, variant):
    settings = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 8}
    metric, mechanism = {"context": "causal", "hidden_dims": (4,)}, {}
    for name, value in VARIANTS[variant].items():
        in_metric = name in MetricConfig.model_fields
        own = settings if name in ModelConfig.model_fields else mechanism
        (metric if in_metric else own)[name] = value
    config = ModelConfig(**settings, metric=metric, mechanism=mechanism)
    stack = randomise(Stack(config).double())
    assert stack(normal(2, 1, 16)).isfinite().all()


def test_dropout_is_active_in_training_only(task_model):
    model, x = task_model(dropout=0.5), images()
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))
