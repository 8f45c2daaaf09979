from pathlib import Path

import pytest
import torch
from torch import nn

from damcha.attention import CrossHeadMetric
from damcha.checkpoint import list_runs
from damcha.errors import InputError
from damcha.model import build_model
from damcha.reproduce import EXPERIMENTS, find
from damcha.reproduce.experiment import _same
from damcha.reproduce.plans import DEPTHS

SHIPPED = Path(__file__).resolve().parents[3] / "checkpoints"


def configs(name, small, seeds=1):
    return [config for one in EXPERIMENTS[name].plan(small, seeds) for config in one.seeds]


def test_every_table_and_figure_that_we_know_has_a_name():
    assert set(EXPERIMENTS) == {
        *(f"table{k}" for k in (1, 2, 3, 4, 5, 6, 8)),
        *(f"figure{k}" for k in (3, 4, 6, 7, 8, 9, 10, 11, 12, 13)),
        "text-study", "text-screening",
    }  # fmt: skip
    for name, one in EXPERIMENTS.items():
        assert find(name) is one and one.name == name and one.what.endswith(".")


def test_another_name_is_refused():
    with pytest.raises(InputError, match="table9: no such experiment; choose from table1, table2"):
        find("table9")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_plans_build_at_both_sizes(name):
    for config in {c.model_copy(update={"name": "x"}).to_json(): c
                   for small in (True, False) for c in configs(name, small)}.values():  # fmt: skip
        with torch.device("meta"):
            assert build_model(config).config == config


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("small", [True, False])
def test_runs_of_an_experiment_have_names_of_their_own(name, small):
    found = [config.name for config in configs(name, small, seeds=3)]
    assert len(set(found)) == len(found)
    if (
        "epochs" not in name
        and found
        and name not in ("figure8", "figure9", "figure10", "figure11")
    ):
        assert {config.train.seed for config in configs(name, small, seeds=3)} == {0, 1, 2}


@pytest.mark.parametrize("small", [True, False])
def test_table_3_has_generators_of_so_many_layers(small):
    plan = EXPERIMENTS["table3"].plan(small, 1)
    assert [one.label for one in plan] == [str(depth) for depth in DEPTHS]
    for one, depth in zip(plan, DEPTHS, strict=True):
        with torch.device("meta"):
            model = build_model(one.seeds[0])
        (generator,) = {
            id(m): m for m in model.modules() if isinstance(m, CrossHeadMetric)
        }.values()
        assert sum(isinstance(layer, nn.Linear) for layer in generator.modules()) == depth
    budgets = {(c.train, c.data) for one in plan for c in one.seeds}
    assert len(budgets) == 1


@pytest.mark.parametrize(
    "name", ["table1", "table4", "table5", "figure3", "figure4", "figure6", "figure7", "figure8",
             "figure9", "figure10", "figure11"],
)  # fmt: skip
def test_what_ships_is_not_trained_again_when_small(name):
    shipped = list_runs(SHIPPED)[0]
    assert all(_same(config, shipped) for config in configs(name, True))
    assert not any(_same(config, shipped) for config in configs(name, False))


def test_the_papers_size():
    for name in ("table1", "table3", "table5", "table6"):
        for config in configs(name, False):
            assert (config.model.n_layers, config.model.n_heads, config.model.d_model) == (
                10,
                8,
                512,
            )
            assert (config.train.epochs, config.train.batch_size) == (50, 128)
            assert (config.train.lr, config.train.clip) == (3e-4, 1.0)
    assert len(configs("table1", False)[0].model.metric.hidden_dims) + 1 == 9
    assert configs("table1", False)[0].seq_len == 1024
