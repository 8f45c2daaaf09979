import json

import pytest
import torch
from pydantic import ValidationError

from damcha.config import (
    MAX_PARAMETERS,
    TASKS,
    DataConfig,
    MetricConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from damcha.errors import ConfigError
from damcha.model import build_model

# One setting at a time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # types
        ({"d_model": "wide"}, r"^model\.d_model: .*valid integer.*\(got \"wide\"\)$"),
        ({"d_model": 64.5}, r"^model\.d_model: .*fractional part \(got 64\.5\)$"),
        ({"d_model": None}, r"^model\.d_model: .*valid integer \(got null\)$"),
        ({"causal": "maybe"}, r"^model\.causal: .*valid boolean.*\(got \"maybe\"\)$"),
        ({"hidden_dims": "256,x"}, r"^model\.metric\.hidden_dims\.1: .*integer.*\(got \"x\"\)$"),
        ({"lr": "fast"}, r"^train\.lr: .*valid number.*\(got \"fast\"\)$"),
        # choices
        ({"task": "translation"}, rf"^task: .*'{TASKS[0]}'.*'{TASKS[-1]}' \(got \"translation"),
        (
            {"dataset": "mnist"},
            r"^data\.dataset: .*'fashion_mnist'.* or 'concepts' \(got \"mnist\"\)$",
        ),
        ({"channels": "4"}, r"^data\.channels: input should be 1 or 3 \(got \"4\"\)$"),
        ({"attention": "no name"}, r"^model\.attention: .*pattern.* \(got \"no name\"\)$"),
        ({"positions": "alibi"}, r"^model\.positions: .*'learned', 'sinusoidal', 'rotary' or"),
        ({"norm": "rms"}, r"^model\.norm: .*'pre' or 'post'"),
        ({"generator": "cnn"}, r"^model\.metric\.generator: .*'mlp' or 'static'"),
        ({"sharing": "all"}, r"^model\.metric\.sharing: .*'groups', 'parameters' or 'none'"),
        ({"context": "past"}, r"^model\.metric\.context: .*'full' or 'causal'"),
        ({"aggregation": "max"}, r"^model\.metric\.aggregation: .*'rowsum' or 'bilinear'"),
        ({"constraint": "diag"}, r"^model\.metric\.constraint: .*'free', 'symmetric', 'psd' or"),
        ({"off_diagonal": "no"}, r"^model\.metric\.off_diagonal: .*'linear_combination' or"),
        ({"metric_init": "zero"}, r"^model\.metric\.metric_init: .*'identity' or 'random'"),
        ({"mixing": "head"}, r"^model\.metric\.mixing: .*'none', 'shared' or 'layer'"),
        ({"query_norm": "layer"}, r"^model\.metric\.query_norm: .*'none' or 'rms'"),
        ({"generator_lr": 0}, r"^train\.generator_lr: .*greater than 0 \(got 0\)$"),
        ({"schedule": "step"}, r"^train\.schedule: .*'cosine' or 'constant'"),
        ({"precision": "int8"}, r"^train\.precision: .*'float32', 'bfloat16' or 'float16'"),
        ({"snapshot_dtype": "int8"}, r"^train\.snapshot_dtype: .*'float32' or 'float16'"),
        ({"format_version": 2}, r"^format_version: input should be 1 \(got 2\)$"),
        # ranges
        ({"d_model": "1000000000"}, r"^model\.d_model: .*less than or equal to 16384 \(got"),
        ({"d_model": 0}, r"^model\.d_model: .*greater than or equal to 1 \(got 0\)$"),
        ({"n_layers": 257}, r"^model\.n_layers: .*equal to 256 \(got 257\)$"),
        ({"context_decays": "0.5,1"}, r"^model\.metric\.context_decays\.1: .*less than 1"),
        ({"context_decays": ["0.5"] * 17}, r"^model\.metric\.context_decays: .*at most 16"),
        ({"context_first": 65}, r"^model\.metric\.context_first: .*equal to 64"),
        ({"dropout": "1"}, r"^model\.dropout: .*less than 1 \(got \"1\"\)$"),
        ({"hidden_dims": [8] * 65}, r"^model\.metric\.hidden_dims: .*at most 64"),
        ({"seq_len": 10**9}, r"^data\.seq_len: .*equal to 65536"),
        ({"image_size": 1025}, r"^data\.image_size: .*equal to 1024"),
        ({"n_classes": 1}, r"^data\.n_classes: .*equal to 2"),
        ({"lr": "inf"}, r"^train\.lr: .*finite number \(got \"inf\"\)$"),
        ({"lr": "nan"}, r"^train\.lr: .*finite number"),
        ({"lr": 0}, r"^train\.lr: .*greater than 0 \(got 0\)$"),
        ({"clip": -1}, r"^train\.clip: .*greater than 0"),
        ({"batch_size": 0}, r"^train\.batch_size: .*equal to 1"),
        ({"epochs": 10**9}, r"^train\.epochs: .*equal to 100000"),
        ({"seed": "-1"}, r"^train\.seed: .*equal to 0 \(got \"-1\"\)$"),
        ({"snapshots": "0,-3"}, r"^train\.snapshots\.1: .*equal to 0"),
        ({"name": "../elsewhere"}, r"^name: string should match pattern .*\(got \"\.\./elsewhere"),
        ({"name": ""}, "^name: string should match pattern"),
        ({"name": "x" * 101}, "^name: string should match pattern"),
        # two at once are told together
        ({"d_model": 0, "n_layers": 0}, r"^model\.d_model: .*; model\.n_layers: .*"),
        (
            {"width": 8},
            "^width: no such setting; the settings are aggregation, attention, .*weight",
        ),
        ({"model": 8}, "^model: no such setting; the settings are"),
    ],
)
def test_wrong_values_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig().override(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_heads": 7}, "^n_heads: d_model=64 is not divisible by n_heads=7; each head takes"),
        (
            {"positions": "rotary", "d_model": 24},
            "^positions: rotary positions turn pairs of channels, but d_head=3 is odd; use an even",
        ),
        (
            {"positions": "sinusoidal", "d_model": 15, "n_heads": 5},
            "^positions: sinusoidal needs an even d_model, not 15$",
        ),
        (
            {"query_norm": "rms", "aggregation": "bilinear"},
            "^query_norm: with aggregation='bilinear' .*; use query_norm='none' or 'rowsum'$",
        ),
        ({"context": "full"}, "^context: .* leaks the future into every score; use context='caus"),
        ({"causal": False}, "^causal: task='image_autoregression' predicts .*; use causal=true$"),
        (
            {"task": "language_modelling", "dataset": "text", "causal": "false"},
            "^causal: task='language_modelling' predicts",
        ),
        (
            {"task": "language_modelling"},
            "^dataset: task='language_modelling' cannot be trained on dataset='fashion_mnist'$",
        ),
        ({"dataset": "text"}, "^dataset: task='image_autoregression' cannot be trained on"),
        ({"patch_size": 5}, "^patch_size: image_size=28 is not divisible by patch_size=5$"),
        ({"class_names": "cat,dog"}, "^class_names: 2 names for n_classes=10$"),
        ({"rank": 8}, "^rank: only constraint='psd' or 'low_rank' has a rank, not 'free'$"),
        ({"constraint": "psd"}, "^rank: constraint='psd' needs a rank, e.g. rank=8$"),
        (
            {"constraint": "low_rank", "rank": 2, "off_diagonal": "separate"},
            "^off_diagonal: 'separate' builds blocks from blocks .*'low_rank'; use constraint='fr",
        ),
        (
            {"constraint": "symmetric", "off_diagonal": "linear_combination"},
            "^off_diagonal: 'linear_combination' does not give a symmetric metric; use off_diag",
        ),
        (
            {"generator": "static", "context_stride": 4},
            "^context_stride: a static metric has no context; leave it at 1$",
        ),
        ({"generator": "static", "context_first": 2}, "^context_decays, context_first: a static "),
        (
            {"context": "full", "causal": "false", "context_decays": "0.5"},
            "^context_decays: a running mean follows a prefix; use context='causal'",
        ),
        (
            {"sharing": "groups"},
            "^group_layers: sharing='groups' needs it.* with group_layers=None$",
        ),
        ({"group_layers": 2}, "^group_layers: .* got sharing='stack' with group_layers=2$"),
        (
            {"sharing": "groups", "group_layers": 3},
            "^group_layers: n_layers=4 is not divisible by group_layers=3; groups are of equal",
        ),
    ],
)
def test_impossible_combinations_are_explained(settings, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig().override(settings)


def test_every_section_raises_our_error():
    for make, message in (
        (lambda: MetricConfig(rank=8), "^rank: only"),
        (lambda: ModelConfig(n_heads=7), "^n_heads: d_model=64"),
        (
            lambda: ModelConfig(metric={"context": "both"}),
            r"^metric\.context: .*'full' or 'causal'",
        ),
        (lambda: DataConfig(patch_size=5), "^patch_size"),
        (lambda: TrainConfig(lr=-1), "^lr: input should be greater than 0"),
        (lambda: RunConfig(model={"foo": 1}), r"^model\.foo: no such setting \(got 1\)$"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


def test_configurations_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().name = "other"


# Size -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"d_model": 8192, "hidden_dims": "8192"},  # 5·10¹¹ in the generator's last layer
        {"d_model": 8192, "generator": "static", "sharing": "none", "n_layers": 256},
        {"d_ff": 65536, "d_model": 4096, "n_layers": 256},
        {"attention": "mha", "d_model": 16384, "n_layers": 256},
        {"off_diagonal": "linear_combination", "sharing": "none", "n_heads": 1024, "d_model": 1024},
        {"layer_bias_rank": 1024, "sharing": "none", "d_model": 2048, "n_layers": 256},
        {"context_first": 64, "d_model": 4096, "hidden_dims": "16384"},
    ],
)
def test_a_stack_too_large_is_refused_before_anything_is_allocated(settings):
    with pytest.raises(ConfigError, match=r"^d_model: .* weights, more than the 2,000,000,000 "):
        RunConfig().override(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"image_size": 1024, "patch_size": 1024, "channels": 3, "d_model": 4096},
        {"task": "image_classification", "n_classes": 100_000, "d_model": 16384},
        {
            "task": "language_modelling", "dataset": "text", "seq_len": 65536, "d_model": 16384,
            "d_ff": 8192,
        },
    ],
)  # fmt: skip
def test_an_embedding_or_head_too_large_is_refused(settings):
    small = {"generator": "static", "n_layers": 1}
    with pytest.raises(ConfigError, match=r"^patch_size: .*lower patch_size, n_classes, seq_len"):
        RunConfig().override({**small, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention": "mha"},
        {"sharing": "none"},
        {"sharing": "parameters", "hidden_dims": "32,48,40"},
        {"generator": "static", "sharing": "none"},
        {"off_diagonal": "linear_combination", "n_heads": 64, "d_model": 64},
        {"off_diagonal": "separate"},
        {"constraint": "psd", "rank": 7},
        {"constraint": "low_rank", "rank": 7, "generator": "static"},
        {"layer_bias_rank": 40, "sharing": "none"},
        {"mixing": "layer", "generator": "static"},
        {"mixing": "layer", "generator": "static", "sharing": "none"},
        {"mixing": "shared", "query_norm": "rms"},
        {"sharing": "groups", "group_layers": 2, "hidden_dims": "40"},
        {"sharing": "groups", "group_layers": 2, "mixing": "layer", "generator": "static"},
        {"context_decays": "0.5,0.9", "context_first": 3, "hidden_dims": "600"},
        {"task": "image_classification", "n_classes": 5000},
        {"task": "image_reconstruction", "patch_size": 28},
        {"task": "language_modelling", "dataset": "text", "seq_len": 4000},
        {"positions": "none"},
    ],
)
def test_the_bound_is_the_number_of_weights(settings):
    config = RunConfig().override({"d_model": 128, "d_ff": 300, **settings})
    with torch.device("meta"):
        model = build_model(config)
    exact = sum(parameter.numel() for parameter in model.parameters())
    # Left out: gains, and all biases but those of the generator's last layer.
    assert 0.98 * exact <= config.parameter_bound() <= exact < MAX_PARAMETERS


# Text to configuration ----------------------------------------------------------------------------


def test_settings_as_they_come_from_a_shell():
    config = RunConfig().override(
        {
            "hidden_dims": "256, 512", "d_model": "128", "lr": "1e-3", "causal": "true",
            "rank": "8", "constraint": "psd", "snapshots": "[0, 3]", "seed": "7",
        }
    )  # fmt: skip
    assert config.model.metric.hidden_dims == (256, 512)
    assert config.model.d_model == 128 and config.train.lr == 1e-3
    assert config.model.metric.rank == 8 and config.train.snapshots == (0, 3)
    back = config.override({"rank": "null", "constraint": "free", "hidden_dims": ""})
    assert back.model.metric.rank is None and back.model.metric.hidden_dims == ()
    assert RunConfig().model.d_model == 64  # the original is left alone


def test_json_is_complete_and_comes_back():
    config = RunConfig(name="x").override({"hidden_dims": "3,4", "class_names": "", "lr": "1"})
    assert RunConfig.from_json(config.to_json()) == config
    tree = json.loads(config.to_json())
    assert tree["format_version"] == 1 and tree["model"]["metric"]["rank"] is None
    names = config.flat()
    assert names["hidden_dims"] == (3, 4) and "model" not in names
    # `--set field=value` needs no path, so a name may stand in one section only.
    sections = (MetricConfig, ModelConfig, DataConfig, TrainConfig, RunConfig)
    fields = [name for section in sections for name in section.model_fields]
    assert len(fields) == len(set(fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^config is not valid JSON: .*EOF"),
        (b"\xff\xfe", "^config is not valid JSON"),
        ('{"name": "x"', "^config is not valid JSON"),
        ("[" * 100_000, "^config is not valid JSON: .*recursion"),
        ('{"seed": 1' + "0" * 5000 + "}", "^config is not valid JSON: .*number out of range"),
        ('{"name": "\\ud800"}', "^config is not valid JSON: .*hex escape"),
        ("[]", r"^config: input should be an object \(got \[\]\)$"),
        ('{"model": 3}', r"^model: input should be an object \(got 3\)$"),
        ('{"model": {"d_model": "64"}}', r"^model\.d_model: .*valid integer \(got \"64\"\)$"),
        ('{"model": {"n_heads": 8.0}}', r"^model\.n_heads: .*valid integer \(got 8\.0\)$"),
        ('{"model": {"causal": 1}}', r"^model\.causal: .*valid boolean \(got 1\)$"),
        ('{"model": {"d_model": 1000000000}}', r"^model\.d_model: .*equal to 16384 \(got 10{9}\)$"),
        ('{"model": {"metric": {"context": "full"}}}', "^context: .*leaks the future"),
        ('{"train": {"lr": NaN}}', r"^train\.lr: .*finite number"),
        ('{"format_version": 2}', "^format_version: input should be 1"),
        ('{"colour": "red"}', r"^colour: no such setting \(got \"red\"\)$"),
        ('{"a\\nb": 1}', "^a b: no such setting"),
    ],
)
def test_a_damaged_config_json_gets_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        RunConfig.from_json(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_long_unknown_field_does_not_flood_the_message():
    with pytest.raises(ConfigError, match=r"^xxx") as caught:
        RunConfig.from_json(json.dumps({"x" * 10**6: "y" * 10**6}))
    assert len(str(caught.value)) < 300


def test_derived_sizes():
    config = RunConfig()
    assert (config.data.n_patches, config.data.patch_dim, config.seq_len) == (49, 16, 49)
    assert config.model.d_head == 8
    text = config.override({"task": "language_modelling", "dataset": "text", "seq_len": 99})
    assert text.seq_len == 99
