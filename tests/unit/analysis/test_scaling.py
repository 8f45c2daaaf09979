import json

import pytest
from click.testing import CliRunner

from damcha.analysis.progress import Progress, finished
from damcha.analysis.scaling import (
    PUBLISHED,
    TABLE2,
    TABLE2_SYSTEMS,
    configuration,
    measure,
    multiply_adds,
    table2_gflops,
)
from damcha.attention import ATTENTIONS
from damcha.cli import main
from damcha.errors import ConfigError
from damcha.figures.scaling import scaling_figure, scaling_table, table2

SMALL = {"d_models": (16,), "n_heads": 2, "batch": 2, "n_layers": 2, "repeats": 1}


@pytest.fixture(scope="module")
def layers():
    return finished(measure(tuple(ATTENTIONS), (6, 20), **SMALL))


@pytest.fixture(scope="module")
def stacks():
    return finished(measure(tuple(ATTENTIONS), (9,), kind="stack", **SMALL))


def test_formula_and_torch_s_count_agree(layers, stacks):
    for found in (layers, stacks):
        for cost in found.costs:
            assert cost.formula == cost.counted, (found.kind, cost.attention, cost.seq_len)


@pytest.mark.parametrize("stride", [1, 4, 16])
@pytest.mark.parametrize("mixing", ["none", "layer"])
@pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
def test_damcha_s_formula(stride, aggregation, mixing):
    import torch

    from damcha.analysis.scaling import _counted, build

    for kind, layers in (("layer", 1), ("stack", 3)):
        config = configuration("damcha", 32, 4, layers, stride)
        metric = config.metric.model_copy(update={"aggregation": aggregation, "mixing": mixing})
        config = config.model_copy(update={"metric": metric})
        x = torch.randn(1, 11, 32)
        assert _counted(build(config, kind, "cpu"), x, kind) == multiply_adds(config, 11, kind)


@pytest.mark.parametrize(
    "settings",
    [
        {"sharing": "groups", "group_layers": 2},
        {"context_decays": (0.5, 0.9), "context_first": 2},
    ],
)
def test_the_formula_of_groups_and_wide_contexts(settings):
    import torch

    from damcha.analysis.scaling import _counted, build

    config = configuration("damcha", 32, 4, 4, 4)
    metric = config.metric.model_copy(update=settings)
    config = config.model_copy(update={"metric": metric})
    counted = _counted(build(config, "stack", "cpu"), torch.randn(1, 11, 32), "stack")
    # The sums over tokens: 3 positions, 5 parts, 11 tokens.
    sums = 3 * 5 * 11 * 32 if "context_first" in settings else 0
    assert counted == multiply_adds(config, 11, "stack") + sums


def test_every_case_is_there_with_ratios_to_mha(layers):
    assert {(c.attention, c.seq_len) for c in layers.costs} == {
        (name, length) for name in ATTENTIONS for length in (6, 20)
    }
    for cost in layers.costs:
        low, middle, high = cost.forward
        assert 0 < low <= middle <= high
        assert cost.memory > 0 and cost.training_memory > 0
        assert cost.tokens_per_second == pytest.approx(2 * cost.seq_len / middle)
        if cost.attention == "mha":
            assert cost.forward_ratio == cost.training_ratio == (1.0, 1.0, 1.0)


def test_progress_reaches_the_end():
    steps = list(measure(("iha",), (4,), **SMALL))
    counts = [(step.done, step.total) for step in steps if isinstance(step, Progress)]
    assert counts[-1][0] == counts[-1][1]
    assert [done for done, _ in counts] == sorted(done for done, _ in counts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attentions": ("mamba",)}, "attention: 'mamba' is not known"),
        ({"seq_lens": ()}, "choose at least one"),
        ({"seq_lens": (100_000,)}, "seq_len: batch 2 · 2 heads · 100000² scores"),
        ({"d_models": (16384,), "n_layers": 200, "kind": "stack"}, "d_model: this model would"),
    ],
)
def test_what_is_refused_before_anything_is_made(options, message):
    with pytest.raises(ConfigError, match=message):
        next(measure(**{**SMALL, **options}))


# T → system → GFLOPs of Table 2, by the formula of design.md §8 and attention-variants.md, written
# out: d = 128, h = 8, e = 16, FF = 256, r = 4, 4 layers.
def by_hand(system, t):
    d, h, e, ff, r = 128, 8, 16, 256, 4
    base = 4 * t * d**2 + 2 * t**2 * d + 2 * t * d * ff
    more = {
        "THA": 2 * t**2 * h**2,
        "DCMHA": t * d * r + t * r * h**2 + t * d * h + t**2 * h**2,
        "ColMHA": 2 * t * h**2 * e,
        "MMA": 0,
        "MoA": 3 * t * d**2 + 2 * t**2 * d + 2 * t * d * h,
    }[system]
    return 8 * 4 * (base + more) / 1e9


@pytest.mark.parametrize("system", TABLE2_SYSTEMS)
@pytest.mark.parametrize("data", TABLE2)
def test_the_15_cells_of_table_2(system, data):
    tokens = TABLE2[data]
    assert round(table2_gflops(system, tokens), 4) == round(by_hand(system, tokens), 4)


def test_table_2_lists_what_was_measured():
    plain = table2()
    assert len(plain.rows) == 15 and plain.columns == ("Data", "T", "System", "GFLOPs")
    found = finished(measure(
        tuple(TABLE2_SYSTEMS.values()), tuple(TABLE2.values()), (16,), kind="stack", n_heads=2,
        batch=1, n_layers=1, repeats=1,
    ))  # fmt: skip
    full = table2(found)
    assert len(full.columns) == 7 and all(len(row) == 7 for row in full.rows)
    assert "the paper's own were not at hand" in full.caption


def test_the_figure_says_what_was_measured(layers, stacks):
    over = scaling_figure(layers)
    assert [len(panel.mark.series) for panel in over.panels] == [len(ATTENTIONS)] * 4
    formula = {line.name: line.y for line in over.panels[0].mark.series}
    by_case = {(c.attention, c.seq_len): c.formula for c in layers.costs}
    assert formula["iha"][1] == by_case["iha", 20] / by_case["mha", 20]
    assert (formula["mha"] == 1).all()
    single = scaling_figure(stacks)
    assert single.panels[0].mark.reference == 1.0
    assert "2 layers" in single.caption and "1 rounds" in single.caption
    assert len(scaling_table(layers).rows) == len(layers.costs)


def test_from_the_shell(tmp_path):
    words = ["bench", "mechanisms", "--attention", "iha", "--seq-len", "8", "--d-model", "16",
             "--n-heads", "2", "--batch", "1", "--repeats", "1"]  # fmt: skip
    files = {name: tmp_path / f"x.{name}" for name in ("json", "tex", "pdf")}
    words += ["--out", files["json"], "--latex", files["tex"], "--figure", files["pdf"]]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    assert "| iha | 8 | 16 |" in result.output
    costs = json.loads(files["json"].read_text())["costs"]
    assert [cost["attention"] for cost in costs] == ["mha", "iha"]
    assert r"\toprule" in files["tex"].read_text()
    assert files["pdf"].read_bytes().startswith(b"%PDF")


def test_published_are_all_but_the_authors_simplified_ones():
    assert len(PUBLISHED) == 9
    assert set(ATTENTIONS) - set(PUBLISHED) == {"authors-dcmha", "authors-colmha", "authors-moa"}
