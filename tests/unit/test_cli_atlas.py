import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from damcha import gallery, open_run
from damcha.analysis.atlas import embed, survey
from damcha.analysis.probes import probes
from damcha.analysis.progress import finished
from damcha.cli import main
from damcha.errors import InputError

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints"
FASHION = SHIPPED / "fashion-damcha"


def run(*words):
    return CliRunner().invoke(main, [*map(str, words), "--device", "cpu"])


@pytest.fixture(scope="module")
def opened():
    run = open_run(FASHION)
    return gallery.open_snapshot(run, None, "cpu"), run.evaluation_set(n=60)


@pytest.fixture(scope="module")
def found(opened):
    snapshot, data = opened
    return finished(survey(snapshot.model, data))


def test_it_prints_and_writes_the_librarys_numbers(found, tmp_path):
    out = tmp_path / "atlas.npz"
    result = run("atlas", "--run", FASHION, "--n", 60, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"mean squared norm): {found.adaptivity:.4g}" in result.stdout
    for row in probes(found, "head_metrics")[0]:
        assert f"{row.name:<16} {row.accuracy:6.1%} ± {row.spread:.1%}" in result.stdout
    with np.load(out) as arrays:
        for name, values in {**found.features, **found.statistics}.items():
            np.testing.assert_array_equal(arrays[name], values)
        np.testing.assert_array_equal(arrays["labels"], found.labels)
        whole = arrays["metric"] @ arrays["metric_basis"]
        np.testing.assert_allclose(whole.mean(0).reshape(64, 64), arrays["mean"], atol=1e-5)


def test_too_few_of_a_class_is_said_and_the_rest_written(tmp_path):
    out = tmp_path / "two.npz"
    result = run("atlas", "--run", FASHION, "--n", 2, "--out", out)
    assert result.exit_code == 0, result.output
    assert "probes need at least two classes with two inputs each" in result.stdout
    assert out.is_file()


def test_a_static_run():
    result = run("atlas", "--run", SHIPPED / "fashion-static", "--n", 5)
    assert result.exit_code == 0 and "every input has the same metric" in result.stdout


def test_text_has_no_probes():
    result = run("atlas", "--run", SHIPPED / "text-damcha", "--n", 3)
    assert result.exit_code == 0 and "adaptivity" in result.stdout
    assert "the class" not in result.stdout


def test_refusals_are_one_sentence():
    for words, message in (
        (("--run", SHIPPED / "fashion-moa"), "no cross-head metric to survey"),
        (("--run", FASHION, "--n", 3, "--layer", 4), "layer: 4 is not one of 0 to 0"),
    ):
        result = run("atlas", *words)
        assert result.exit_code == 2 and message in result.stderr
        assert result.stderr.rstrip().splitlines()[-1].startswith("damcha: ")


@pytest.mark.parametrize(
    "options",
    [
        ("atlas", "--map", "pca", "--colour", "loss"),
        ("atlas", "--map", "tsne", "--feature", "blocks"),
        ("atlas-moments",),
        ("atlas-components", "--few", "1"),
        ("atlas-relation", "--statistic", "diagonal_share"),
    ],
)
def test_the_command_a_figure_names_makes_it_again(tmp_path, options):
    out = tmp_path / "one.svg"
    result = run("figure", *options, "--run", FASHION, "--n", 40, "--out", out)
    assert result.exit_code == 0, result.output
    story = json.loads(out.with_suffix(".json").read_text())
    words = shlex.split(story["provenance"]["command"])
    again = tmp_path / "two.svg"
    words[words.index("--out") + 1] = str(again)
    result = run(*words[1:])
    assert result.exit_code == 0, result.output
    with np.load(out.with_suffix(".npz")) as one, np.load(again.with_suffix(".npz")) as two:
        assert one.files == two.files and len(one.files) > 1
        for name in set(one.files) - {"provenance"}:
            np.testing.assert_array_equal(one[name], two[name])


def test_figures_show_the_atlas(opened, found):
    places, _ = embed(found.features["metric"], "pca")
    figure = gallery.atlas.chart(*opened, "metric", "pca", "label", result=found)
    np.testing.assert_array_equal(figure.arrays["places"], places)
    names = {one.name for one in figure.panels[0].mark.series}
    assert names == {opened[1].class_names[k] for k in found.labels}
    loss = gallery.atlas.relation(*opened, "norm", result=found).arrays
    np.testing.assert_allclose(loss["y"], found.statistics["loss"])
    moments = gallery.atlas.moments(*opened, result=found).arrays
    np.testing.assert_array_equal(moments["mean"], found.mean)


def test_options_that_are_not_there(opened, found):
    with pytest.raises(InputError, match="colour: 'part' is not there; choose from label, part"):
        gallery.atlas.chart(*opened, colour="part", result=found)
    with pytest.raises(InputError, match="statistic: 'odd' is not one of loss, norm"):
        gallery.atlas.relation(*opened, "odd", result=found)
    unranked = np.full_like(found.statistics["norm"], np.nan)
    wide = replace(found, statistics={**found.statistics, "effective_rank": unranked})
    for draw in (gallery.atlas.relation, partial(gallery.atlas.chart, colour="effective_rank")):
        with pytest.raises(InputError, match="effective_rank: it takes the singular values of"):
            given = ("effective_rank",) if draw is gallery.atlas.relation else ()
            draw(*opened, *given, result=wide)
    with pytest.raises(InputError, match="few: 12 components do not fit a figure; use 1 to 11"):
        gallery.atlas.principal(*opened, few=12, result=found)


def test_what_the_basis_leaves_out_is_in_the_caption(opened, found):
    from dataclasses import replace

    exact = gallery.atlas.principal(*opened, result=found).caption
    assert "dimensions that are kept" not in exact
    cut = replace(found, lost={"metric": 0.02})
    caption = gallery.atlas.principal(*opened, result=cut).caption
    assert "more than the 33 dimensions that are kept; 0.02 of their squared norm" in caption
