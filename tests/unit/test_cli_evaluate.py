import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from damcha import open_run
from damcha.analysis import fid
from damcha.cli import main

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints"
FASHION = SHIPPED / "fashion-damcha"


def run(*words):
    return CliRunner().invoke(main, ["evaluate", "--device", "cpu", *map(str, words)])


def rows(text):
    return {row["Measure"]: row for row in csv.DictReader(io.StringIO(text))}


def test_the_table_is_the_models():
    result = run("--run", FASHION, "--n", 60, "--format", "csv")
    assert result.exit_code == 0, result.output
    opened = open_run(FASHION)
    inputs, targets = next(opened.evaluation_set(n=60).batches())
    losses = np.sort(opened.load(device="cpu").score(inputs, targets)["loss"].numpy())
    row = rows(result.stdout)["MSE"]
    found = [float(row[name]) for name in ("Mean [95 %]", "q25", "q75", "Top-50")]
    expected = [losses.mean(), *np.quantile(losses, (0.25, 0.75)), losses[:50].mean()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert float(row["Mean [95 %] low"]) < found[0] < float(row["Mean [95 %] high"])


def test_texts_and_classes():
    text = rows(run("--run", SHIPPED / "text-mha", "--n", 8, "--format", "csv").stdout)
    assert list(text) == ["NLL [nats]", "Bits a byte", "Perplexity a byte"]
    nats = float(text["NLL [nats]"]["Mean [95 %]"])
    assert float(text["Perplexity a byte"]["Mean [95 %]"]) == pytest.approx(np.exp(nats))
    result = run("--run", SHIPPED / "fashion-classifier", "--n", 60, "--format", "csv")
    classes = rows(result.stdout)
    assert list(classes) == ["NLL [nats]", "Top-1 accuracy", "Top-5 accuracy"]
    assert classes["Top-1 accuracy"]["q25"] == ""


def test_fid_is_written_with_the_name_of_its_features(tmp_path, monkeypatch):
    monkeypatch.setattr(fid.trained_network, "__kwdefaults__", {"seed": 0, "steps": 5})
    words = ("--run", FASHION, "--n", 60, "--fid", "--out", tmp_path / "out", "--format", "latex",
             "--outputs", "predictions", "--outputs", "completion")  # fmt: skip
    result = run(*words)
    assert result.exit_code == 0, result.output
    kept = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    name = "small CNN trained on fashion_mnist, test without the evaluated pictures "
    name += "(seed 0, 5 steps)"
    assert [one["network"] for one in kept["fid"]] == [name, name]
    assert [one["outputs"] for one in kept["fid"]] == ["predictions", "completion"]
    table = (tmp_path / "out" / "evaluation.tex").read_text()
    assert name.replace("_", r"\_") in table and "FID, completion" in table
    assert kept["provenance"]["weights_digest"] == open_run(FASHION).weights_digest()
    with np.load(tmp_path / "out" / "evaluation.npz") as arrays:
        assert arrays["mse"].mean() == pytest.approx(kept["measures"][0]["mean"])
    assert run(*words).exit_code == 0  # with the network that lies there
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text()) == kept


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("text-mha", ("--fid",), "a run of 'language_modelling' makes no pictures"),
        ("fashion-damcha", ("--outputs", "filled"), "choose predictions or completion"),
        ("fashion-damcha", ("--inception", "no.pth"), "no.pth is missing"),
        ("fashion-damcha", ("--data", "/no/such"), "no such file or folder"),
    ],
)
def test_refusals(name, words, message):
    result = run("--run", SHIPPED / name, "--n", 4, *words)
    assert result.exit_code == 2 and message in result.stderr
    assert result.stderr.strip().count("\n") == 0
