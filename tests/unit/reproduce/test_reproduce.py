import json
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import damcha.training
from damcha.analysis.evaluation import scores
from damcha.analysis.progress import finished
from damcha.checkpoint import open_run
from damcha.cli import main
from damcha.data.evaluation import evaluation_set
from damcha.errors import CheckpointError
from damcha.reproduce import EXPERIMENTS
from damcha.reproduce.read import list_results, open_result

IDX = Path(__file__).resolve().parents[2] / "data" / "idx"
TINY = (
    "d_model=16 n_heads=2 n_layers=1 d_ff=16 patch_size=7 epochs=2 steps_per_epoch=3 batch_size=4 "
    "warmup_steps=2 snapshots=0,1 validation_examples=8"
).split()


def run(name, out, *words):
    pairs = [word for pair in TINY for word in ("--set", pair)]
    given = ["reproduce", name, "--small", "--out", str(out), "--data", str(IDX), "--n", "12",
             "--device", "cpu", "--checkpoints", str(out / "none"), *pairs, *words]  # fmt: skip
    return CliRunner().invoke(main, given)


def done(name, out, *words):
    result = run(name, out, *words)
    assert result.exit_code == 0, result.output
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def table3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "table3"
    return folder, done("table3", folder)


@pytest.fixture(scope="module")
def table4(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "table4"
    return folder, done("table4", folder, "--seeds", "2")


def test_table_3_from_training_to_the_card(table3):
    folder, facts = table3
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "evaluations", "results.json", "runs", "table.md", "table.tex",
        "table3.json", "table3.npz", "table3.pdf", "table3.png",
    }  # fmt: skip
    assert [one["run"] for one in facts["runs"]] == [f"depth-{k}" for k in (1, 3, 5, 7, 9)]
    for depth in (1, 3, 5, 7, 9):
        got = facts["values"][f"depth {depth}"]
        assert set(got) == {
            "Full", "Diagonal only", "Off-diagonal only", "Diagonal only, norm-matched",
            "Off-diagonal only, norm-matched",
        }  # fmt: skip
        assert got["Full"]["difference"] == 0 < got["Full"]["mean"]
    latex = (folder / "table.tex").read_text()
    assert latex.count(r"\midrule") == 5 and r"\toprule" in latex
    assert r"Layers of $f_\theta$" in latex and r"f\_" not in latex


def test_numbers_are_those_of_the_runs(table4):
    folder, facts = table4
    values = facts["values"]["fashion_mnist"]
    for system, word in (("DAMCHA", "damcha"), ("DAMCHA, w/o f(x)", "static")):
        losses = []
        for name in (f"fashion-{word}", f"fashion-{word}-seed1"):
            opened = open_run(folder / "runs" / name)
            data = evaluation_set(opened.config.data, IDX, 12)
            losses.append(finished(scores(opened.load(None, "cpu"), data))["mse"])
        assert losses[0].mean() != losses[1].mean()
        np.testing.assert_allclose(values[system]["mean"], np.mean(losses), rtol=1e-6)
        np.testing.assert_allclose(values[system]["seed_means"], np.mean(losses, 1), rtol=1e-6)
        np.testing.assert_allclose(values[system]["q25"], np.quantile(np.mean(losses, 0), 0.25))
    assert facts["data"][0]["digest"] == data.digest


def test_the_card_says_what_was_done(table4):
    folder, facts = table4
    card = (folder / "README.md").read_text()
    assert "# table4: ablations of the generator" in card
    assert f"`{facts['command']}`" in card and "--data idx" in card and str(IDX) not in card
    assert "fashion_mnist, test: 12 of" in card and facts["data"][0]["digest"][:16] in card
    assert "| DAMCHA, unshared | fashion-unshared-seed1 | trained by this command | 1 |" in card
    assert "not at hand" in card and "## Caveats" in card and "One seed each" not in card
    assert (folder / "table.md").read_text().strip() in card
    for word in ("torch", "python", "numpy", "damcha"):
        assert f"{word} {facts['versions'][word]}" in card


def test_finished_work_is_not_done_again(table4, monkeypatch):
    folder, facts = table4
    stamps = {
        p: p.stat().st_mtime_ns for p in (*folder.rglob("*.npz"), *folder.rglob("*.safetensors"))
    }

    def never(*args, **options):
        raise AssertionError("measured again")

    monkeypatch.setattr("damcha.analysis.evaluation.scores", never)
    again = done("table4", folder, "--seeds", "2")
    assert again["values"] == facts["values"]
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps


def test_an_interrupted_command_goes_on(tmp_path, monkeypatch, table3):
    reference, facts = table3
    folder, real, calls = tmp_path / "table3", damcha.training._batch, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 10:  # in the second epoch of the second run
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(damcha.training, "_batch", interrupted)
    stopped = run("table3", folder)
    assert stopped.exit_code == 130 and "the same command continues" in stopped.output
    assert not (folder / "results.json").exists() and (folder / "runs" / "depth-1").exists()
    assert done("table3", folder)["values"] == facts["values"]
    assert len(calls) == 5 * 6 + 1  # nothing but the step that was cut off is trained twice
    for path in (reference / "runs").rglob("epoch-0001.safetensors"):
        assert (folder / path.relative_to(reference)).read_bytes() == path.read_bytes()


def test_shipped_runs_need_no_data(tmp_path):
    out = tmp_path / "figure8"
    shipped = Path(__file__).resolve().parents[3] / "checkpoints"
    words = ["reproduce", "figure8", "--small", "--out", str(out), "--checkpoints", str(shipped),
             "--device", "cpu", "--n", "4"]  # fmt: skip
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    facts = json.loads((out / "results.json").read_text())
    assert facts["runs"][0]["shipped"] and facts["table"] is None
    assert facts["figures"] == ["figure8", "figure8-head-metrics", "figure8-blocks"]
    assert "ships with damcha" in (out / "README.md").read_text()
    with np.load(out / "figure8.npz") as stored:
        metric = stored["panel_0.values"]
    assert metric.shape == (64, 64) and metric.std() > 0


@pytest.mark.parametrize("name", ["table1", "table6", "figure4", "figure9", "figure10", "figure11"])
def test_other_kinds_on_tiny_runs(name, tmp_path, monkeypatch):
    from damcha.reproduce import plans

    few = {k: plans.MECHANISMS[k] for k in ("DAMCHA", "MHA")}
    if name in ("table1", "figure4"):
        monkeypatch.setattr(plans, "MECHANISMS", few)
    facts = done(name, tmp_path / name, "--set", "hidden_dims=8")
    assert facts["figures"] == ([name] if name.startswith("figure") else [])
    if name == "table1":
        cells = dict(zip(facts["table"]["columns"], facts["table"]["rows"][0], strict=True))
        assert cells["Paper: FID@Top-50"] == "58.64 / 63.03 / 65.13"
        fid = facts["values"]["fashion_mnist"]["DAMCHA"]["fid"]
        assert float(cells["FID"]) == fid > 0
        assert "by features of small CNN trained on" in facts["table"]["caption"]
    if name == "table6":
        own = facts["values"]["fashion_mnist"]["DAMCHA"]
        assert 0 <= own["top1"][0] <= own["top5"][0] <= 1


def test_forms_on_text_are_compared_by_seed(tmp_path, monkeypatch):
    from damcha.reproduce import plans

    few = {label: plans.SCREENED[label] for label in ("paper", "MHA", "mixing")}
    monkeypatch.setattr(plans, "SCREENED", few)
    text = tmp_path / "data"
    text.mkdir()
    for part in ("train", "valid", "test"):
        (text / f"a.{part}.txt").write_text("To be, or not to be, that is the question. " * 20)
    words = [word for pair in TINY if "patch" not in pair for word in ("--set", pair)]
    out = tmp_path / "out"
    result = CliRunner().invoke(main, [
        "reproduce", "text-screening", "--out", str(out), "--data", str(text), "--device", "cpu",
        "--seeds", "2", "--set", "seq_len=32", "--set", "hidden_dims=8", *words,
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    facts = json.loads((out / "results.json").read_text())
    assert facts["figures"] == ["text-screening"] and len(facts["runs"]) == 6
    by_name = {one["name"]: one for one in facts["values"]["variants"]}
    ends = {
        name: [
            open_run(out / "runs" / f"text-{word}{seed}").metrics[-1]["valid_loss"]
            for seed in ("", "-seed1")
        ]
        for name, word in (("MHA", "mha"), ("mixing", "mixing"))
    }
    gaps = np.subtract(ends["mixing"], ends["MHA"])
    np.testing.assert_allclose(by_name["mixing"]["differences"]["MHA"][1], gaps.mean(), rtol=1e-12)
    row = next(row for row in facts["table"]["rows"] if row[0] == "mixing")
    assert "off_diagonal=linear_combination mixing=layer" in row[2] and len(row[4]) == 3
    low, mean, high = by_name["mixing"]["differences"]["MHA"]
    assert row[4] == [mean, low, high] and low < mean < high


def test_cross_subspace_tasks_are_measured_once(tmp_path, monkeypatch):
    from damcha.analysis import subspaces

    tiny = subspaces.Size(d_model=12, n_heads=3, seq_len=6, widths=(2,), levels=(0.0, 1.0), seeds=2,
                          steps=3, batch=4, held_out=16)  # fmt: skip
    monkeypatch.setattr(subspaces, "SMALL", tiny)
    words = ["reproduce", "figure13", "--small", "--out", str(tmp_path / "figure13")]
    for _ in range(2):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        facts = json.loads((tmp_path / "figure13" / "results.json").read_text())
        assert facts["figures"] == ["figure13"] and facts["values"]["kind"] == "classification"
        values = np.array([cell["values"] for cell in facts["values"]["cells"]])
        assert values.shape == (2, 5, 2) and (values > 0).all() and (values < 1).all()
        assert len(facts["table"]["rows"]) == 10
        assert "At entanglement 1" in (tmp_path / "figure13" / "README.md").read_text()

        def never(*args):
            raise AssertionError("measured again")

        monkeypatch.setattr(subspaces, "measure", never)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table3", "--small"), "table3 trains 5 runs on fashion_mnist; name the folder of its "
                                "data: --data fashion_mnist=DIR"),
        (("table3", "--small", "--data", "/no/such"), "/no/such: no such folder"),
        (("table7",), "table7: no such experiment"),
        (("table3", "--set", "epochs"), "--set epochs: write it as field=value"),
    ],
)  # fmt: skip
def test_refusals_are_a_sentence(words, message, tmp_path):
    result = CliRunner().invoke(main, ["reproduce", *words, "--out", str(tmp_path / "x")])
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output
    assert not (tmp_path / "x").exists()


def test_results_are_read_back(table3, table4):
    good, bad = list_results(table4[0].parent, table3[0].parent, "/no/such")
    assert [one.name for one in good] == ["table3", "table4"] and not bad
    first = good[0]
    assert first.table.rows[0][:2] == (1, "Full") and first.small
    assert first.picture("table3").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "not one that `damcha reproduce` wrote"),
        ("{", "not one that"),
        ('{"format": "other", "format_version": 1}', "format 'other'"),
    ],
)
def test_a_strange_file_is_refused(content, message, tmp_path):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        open_result(tmp_path)


def test_figures_outside_the_folder_are_refused(table3, tmp_path):
    facts = json.loads((table3[0] / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps({**facts, "figures": ["../secret"]}))
    with pytest.raises(CheckpointError, match="outside"):
        open_result(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(facts))
    (tmp_path / "table3.png").write_bytes(b"GIF89a")
    with pytest.raises(CheckpointError, match="not a PNG"):
        open_result(tmp_path).picture("table3")


def test_dashes_where_the_papers_numbers_are_not_at_hand(table3):
    folder, facts = table3
    table = facts["table"]
    assert {row[table["columns"].index("Paper")] for row in table["rows"]} == {"–"}
    assert "not at hand" in table["caption"] and facts["paper"] == {}
    assert EXPERIMENTS["table3"].title in (folder / "README.md").read_text()
