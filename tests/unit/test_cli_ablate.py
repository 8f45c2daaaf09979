import csv
import io
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from damcha import gallery, open_run
from damcha.analysis.ablation import evaluate
from damcha.analysis.progress import finished
from damcha.cli import main

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints"
FASHION = SHIPPED / "fashion-damcha"


def run(*words):
    return CliRunner().invoke(main, ["ablate", *map(str, words)])


def test_the_table_is_the_librarys():
    folder = SHIPPED / "fashion-damcha"
    result = run("--run", folder, "--n", 40, "--interventions", "full,zero", "--format", "csv",
                 "--device", "cpu")  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    opened = open_run(folder)
    snapshot = gallery.open_snapshot(opened, None, "cpu")
    edits = gallery.ablation.edits(snapshot, ("full", "zero"))
    found = finished(evaluate(snapshot.model, opened.evaluation_set(n=40), edits))
    np.testing.assert_allclose([float(row["Mean"]) for row in rows], found.loss.mean(1), rtol=1e-5)


def test_latex_goes_to_a_file(tmp_path):
    out = tmp_path / "table.tex"
    result = run("--run", SHIPPED / "fashion-static", "--n", 8, "--interventions",
                 "full,identity", "--format", "latex", "--out", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert out.read_text().startswith("\\begin{table}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--interventions", "magic"), "intervention: 'magic' is not known"),
        (("--interventions", ","), "interventions: name at least one"),
        (("--data", "/no/such"), "no such file or folder"),
    ],
)
def test_refusals(words, message):
    result = run("--run", SHIPPED / "fashion-damcha", *words)
    assert result.exit_code == 2 and message in result.stderr


def test_several_runs_in_one_table():
    other = SHIPPED / "fashion-static"
    words = ("--run", FASHION, "--other-run", other, "--n", 60, "--interventions", "full,zero")
    result = run(*words)
    assert result.exit_code == 0, result.output
    rows = [line.split("|")[1:4] for line in result.stdout.splitlines() if line.startswith("| f")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["fashion-damcha", "49", "Full"], ["fashion-damcha", "49", "Zero"],
        ["fashion-static", "49", "Full"], ["fashion-static", "49", "Zero"],
    ]  # fmt: skip
    alone = run("--run", other, "--n", 60, "--interventions", "full,zero").stdout
    number = next(line for line in alone.splitlines() if line.startswith("| Full")).split("|")[2]
    assert f"| Full |{number}|" in result.stdout


def test_runs_that_cannot_stand_in_one_table():
    for other, message in (
        (SHIPPED / "text-damcha", "'text-damcha' has another task or data than 'fashion-damcha'"),
        (FASHION, "two runs are named 'fashion-damcha'"),
    ):
        result = run("--run", FASHION, "--other-run", other, "--n", 60)
        assert result.exit_code == 2 and message in result.stderr
