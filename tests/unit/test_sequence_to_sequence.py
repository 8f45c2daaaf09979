"""Source in, target out: the model, its training, its run, and what the figures show of it."""

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from damcha import gallery
from damcha.analysis.text_scores import bleu
from damcha.checkpoint import open_run
from damcha.cli import main
from damcha.config import RunConfig
from damcha.errors import CheckpointError, ConfigError, InputError
from damcha.figures.spec import Tokens
from damcha.symbols import Bytes, Marks
from damcha.training import train

SEPARATOR, END, PAD = 256, 257, 258
VARIANTS = {
    "shared": {},
    "static": {"generator": "static", "context_stride": 1},
    "unshared": {"sharing": "none"},
    "bilinear": {"aggregation": "bilinear"},
    "rotary": {"positions": "rotary"},
    **{name: {"attention": name} for name in ("mha", "dcmha", "iha", "budgetformer", "moa")},
    "mhar": {"attention": "mha", "residual": "mhar", "residual_heads": 2},
}
TASK = "sequence_to_sequence"


def row(*symbols):
    return torch.tensor([symbols])


@pytest.fixture(scope="module")
def concepts(tmp_path_factory):
    """Pairs whose target repeats the words of the source."""
    folder = tmp_path_factory.mktemp("concepts")
    words = "one two three four five six seven eight nine ten".split()
    pairs = [(a, b) for a in words for b in words if a != b]
    for part, chosen in (("train", pairs), ("validation", pairs[::5]), ("test", pairs[::7])):
        lines = [
            json.dumps({"concept_set_idx": k, "concepts": [a, b], "target": f"{a} and {b}."})
            for k, (a, b) in enumerate(chosen)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    return folder


def config(**settings):
    tiny = {
        "task": TASK, "dataset": "concepts", "seq_len": 16, "vocabulary": 270, "d_model": 16,
        "n_heads": 2, "n_layers": 1, "d_ff": 16, "hidden_dims": "8", "context_stride": 4,
        "epochs": 3, "steps_per_epoch": 4, "batch_size": 4, "warmup_steps": 2, "lr": 3e-3,
        "snapshots": "0", "snapshot_dtype": "float32", "validation_examples": 8,
    }  # fmt: skip
    return RunConfig(name="tiny").override({**tiny, **settings})


@pytest.fixture(scope="module")
def run(concepts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pairs"
    list(train(config(), folder, concepts, device="cpu"))
    return open_run(folder)


# The model ----------------------------------------------------------------------------------------


def test_the_loss_is_of_the_target_and_its_end(task_model):
    model = task_model(TASK)
    x = row(65, 66, SEPARATOR, 67, 68, END, PAD, PAD)
    log_p = model(x).log_softmax(-1)[0]
    expected = -(log_p[3, 67] + log_p[4, 68] + log_p[5, END]) / 3
    torch.testing.assert_close(model.score(x, x[:, 0])["loss"], expected[None])
    torch.testing.assert_close(model.score(x[:, :6], x[:, 0])["loss"], expected[None])
    assert model.counted(x).tolist() == [[False] * 3 + [True] * 3 + [False] * 2]
    assert not model.counted(x[:, :3]).any()
    assert model.prompt_length(x) == 3


def greedy(model, prompt, n):
    """Without a cache, one example at a time."""
    text, written = prompt, None
    for _ in range(n):
        logits = model.next_logits(text)
        logits[:, [SEPARATOR, PAD]] = float("-inf")
        written = logits.argmax(-1, keepdim=True)
        text = torch.cat((text, written), 1)
        if int(written) == END:
            break
    return text[0].tolist()


def beam(model, prompt, n, beams, penalty):
    kept = [(0.0, prompt, False)]
    for _ in range(n):
        found = []
        for score, text, ended in kept:
            if ended:
                found.append((score, text, True))
                continue
            log_p = model.next_logits(torch.tensor([text])).log_softmax(-1)[0]
            log_p[[SEPARATOR, PAD]] = float("-inf")
            for value, symbol in zip(*(x.tolist() for x in log_p.topk(beams)), strict=True):
                found.append((score + value, [*text, symbol], symbol == END))
        kept = sorted(found, key=lambda item: -item[0])[:beams]
    return max(kept, key=lambda item: item[0] / (len(item[1]) - len(prompt)) ** penalty)[1]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_are_those_of_the_full_forward(task_model, variant, batch):
    model = task_model(TASK, **VARIANTS[variant])
    model.head.bias.data[END] += 1.5  # some end early
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randint(0, 256, (batch, 4), generator=generator)
    prompt[:, -1] = SEPARATOR
    for one, found in zip(prompt, model.answer(prompt), strict=True):
        expected = greedy(model, one[None], 6)
        assert found.tolist()[: len(expected)] == expected
        assert set(found.tolist()[len(expected) :]) <= {PAD}
    for one, found in zip(prompt, model.answer(prompt, 5, beams=3), strict=True):
        expected = beam(model, one.tolist(), 5, 3, 0.6)
        assert found.tolist()[: len(expected)] == expected
        assert set(found.tolist()[len(expected) :]) <= {PAD}


def test_rows_that_are_no_pairs_have_no_loss(task_model):
    model = task_model(TASK)
    with pytest.raises(InputError, match="these symbols are no pairs"):
        model.score(torch.tensor([[65, SEPARATOR, 66], [65, 66, 67]]), torch.zeros(2))


def test_what_cannot_be_answered(task_model):
    model, prompt = task_model(TASK), row(65, SEPARATOR)
    for beams in (0, 65):
        with pytest.raises(InputError, match=f"beams: {beams}; use 1"):
            model.answer(prompt, beams=beams)
    with pytest.raises(InputError, match="2 symbols and 9 more exceed this model's 10"):
        model.answer(prompt, 9)
    assert model.answer(prompt, 0).tolist() == prompt.tolist()
    with pytest.raises(InputError, match="symbols are 0 to 258"):
        model(row(259))
    with pytest.raises(ConfigError, match="symbols are subwords; load it with its run"):
        task_model(TASK, vocabulary=300).spelled([65])
    assert model.spelled([72, 105, END, 72]) == "Hi"


def test_settings_that_do_not_belong_together():
    with pytest.raises(ConfigError, match="cannot be trained on dataset='text'"):
        config(dataset="text")
    with pytest.raises(ConfigError, match="vocabulary: task='language_modelling' has no tokeni"):
        config(task="language_modelling")
    with pytest.raises(ConfigError, match="seq_len: a pair needs room for 4 symbols"):
        config(seq_len=3)
    with pytest.raises(ConfigError, match="causal: task='sequence_to_sequence' predicts"):
        config(causal=False, context="full", context_stride=1)
    with pytest.raises(ConfigError, match="vocabulary"):
        config(vocabulary=300_000)
    with pytest.raises(ConfigError, match="vocabulary: texts of pairs need 256 symbols or more"):
        config(vocabulary=100)
    with pytest.raises(ConfigError, match="first_symbol: only a language model has one"):
        config(first_symbol=0)


# The run ------------------------------------------------------------------------------------------


def test_a_run_has_its_tokenizer_samples_and_card(run):
    assert run.strays == () and run.notes == ()
    assert run.tokenizer.size == 270 and run.load().tokenizer is run.tokenizer
    assert "270 symbols, learnt from the training part" in run.card
    assert run.unit.startswith("nats a symbol of the target")
    assert len(run.samples) == 8
    assert run.samples[0].read_text() == "one two\tone and two.\n"
    losses = [line["valid_loss"] for line in run.metrics]
    assert losses[-1] < losses[0] < np.log(273) + 0.5


def test_training_resumes_exactly(run, concepts, tmp_path):
    folder = tmp_path / "pairs"
    steps = train(config(), folder, concepts, device="cpu")
    for _ in range(6):
        next(steps)
    steps.close()
    list(train(config(), folder, concepts, device="cpu"))
    for name in ("tokenizer.json", "epoch-0002.safetensors"):
        assert (folder / name).read_bytes() == (run.path / name).read_bytes()


def test_a_vocabulary_that_the_texts_do_not_give(concepts, tmp_path):
    with pytest.raises(ConfigError, match=r"the training texts give \d+ symbols, not 5000; use"):
        list(train(config(vocabulary=5000), tmp_path / "run", concepts, device="cpu"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "tokenizer.json"),
        ('{"format_version": 1, "merges": []}', "has 256 symbols, not 270"),
        ("[]", "not a tokenizer that damcha wrote"),
    ],
)
def test_a_wrong_tokenizer_is_refused(run, tmp_path, content, message):
    folder = tmp_path / "copy"
    shutil.copytree(run.path, folder)
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    copy = open_run(folder)
    for use in (copy.load, lambda: copy.prepare("one two")):
        with pytest.raises(CheckpointError, match=message):
            use()


def test_a_source_and_its_target_become_symbols(run):
    marks, tokenizer = Marks(270), run.tokenizer
    pair = run.prepare("one two\tone and two.")
    expected = [*tokenizer.encode("one two"), marks.separator]
    expected += [*tokenizer.encode("one and two."), marks.end]
    assert pair.inputs.tolist() == [expected]
    assert "⟨to⟩" in pair.labels and pair.labels[-1] == "⟨end⟩"
    assert len(pair.labels) == len(expected)
    assert run.prepare(run.samples[0]).inputs.tolist() == [expected]
    source = run.prepare("one two")
    assert source.inputs.tolist() == [expected[: expected.index(marks.separator) + 1]]
    long = run.prepare("one " * 50 + "\t" + "two " * 50)
    assert long.inputs.shape == (1, 16) and any("Cut to 16 symbols" in n for n in long.notes)
    for odd in ("\t", "", "  "):
        with pytest.raises(InputError, match=r"blank|empty"):
            run.prepare(odd)


def test_held_out_pairs_can_be_evaluated(run, concepts):
    data = run.evaluation_set(concepts, 5)
    assert data.name == "concepts, test: 5 of 13 pairs" and data.labels is None
    (inputs, _), *_ = data.batches()
    assert inputs.shape == (5, 16)
    source, target = data.original(0).decode().split("\t")
    assert target == f"{source.replace(' ', ' and ')}."
    assert run.prepare(data.original(0)).inputs[0].tolist() == [
        k for k in inputs[0].tolist() if k != Marks(270).pad
    ]


def test_bytes_need_no_file(concepts, tmp_path):
    folder = tmp_path / "bytes"
    list(train(config(vocabulary=256, epochs=1, seq_len=32), folder, concepts, device="cpu"))
    assert not (folder / "tokenizer.json").exists()
    run = open_run(folder)
    assert isinstance(run.tokenizer, Bytes) and "256 bytes as symbols" in run.card
    assert run.prepare("aä").labels == ("a", "0xC3", "0xA4", "⟨to⟩")


# Figures ------------------------------------------------------------------------------------------


def test_a_source_alone_gets_the_target_that_the_last_snapshot_writes(run):
    subjects = [gallery.open_subject(run, epoch, "one two", device="cpu") for epoch in run.epochs]
    first, last = subjects
    assert torch.equal(first.example.inputs, last.example.inputs)
    assert any("last snapshot writes" in note for note in last.example.notes)
    prompt = run.prepare("one two").inputs
    written = run.load(device="cpu").answer(prompt)
    assert torch.equal(last.example.inputs, written)
    assert last.inspection.answer.continuation == run.load().spelled(
        written[0, prompt.shape[1] :].tolist()
    )


def test_figures_are_of_the_target_alone(run):
    subject = gallery.open_subject(run, None, "one two\tone and two.", device="cpu")
    n = len(run.tokenizer.encode("one and two.")) + 1
    model = subject.model
    log_p = F.log_softmax(model(subject.example.inputs).double(), -1)
    nats = -log_p.gather(-1, subject.example.inputs[..., None])[0, -n:, 0]
    surprise = gallery.KINDS["surprise"].draw(subject)
    mark = surprise.panels[0].mark
    assert isinstance(mark, Tokens) and mark.labels == subject.example.labels[-n:]
    np.testing.assert_allclose(mark.values, nats, rtol=1e-5)
    assert "bits a symbol" in surprise.title
    ablation = gallery.KINDS["ablation"].draw(subject)
    assert ablation.arrays["nats"].shape[1] == n
    np.testing.assert_allclose(ablation.arrays["nats"][0], nats, rtol=1e-4)
    assert ablation.arrays["loss"][0] == pytest.approx(float(nats.mean()), rel=1e-4)
    answer = gallery.KINDS["answer"].draw(subject)
    assert answer.title == "First symbol of the target"
    assert answer.arrays["probabilities"].shape == (273,)


@pytest.mark.parametrize("kind", ["metric", "epochs", "contributions", "knock-out", "attention"])
def test_every_figure_draws(run, kind, tmp_path):
    out = tmp_path / "figure.png"
    words = ["figure", kind, "--run", str(run.path), "--text", "one two", "--out", str(out)]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert out.stat().st_size > 5000


# Evaluation ---------------------------------------------------------------------------------------


def test_evaluation_scores_what_the_model_writes(run, concepts, tmp_path):
    words = ["evaluate", "--run", run.path, "--data", concepts, "--n", 6, "--device", "cpu",
             "--beams", 2, "--out", tmp_path]  # fmt: skip
    result = CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    kept = json.loads((tmp_path / "evaluation.json").read_text())
    assert [one["name"] for one in kept["measures"]] == ["nll", "perplexity_per_symbol"]
    written = [json.loads(line) for line in (tmp_path / "written.jsonl").read_text().splitlines()]
    assert len(written) == 6 and kept["provenance"]["beams"] == 2
    hypotheses = [one["hypothesis"] for one in written]
    references = [one["references"] for one in written]
    assert kept["text"][0]["corpus"] == bleu(hypotheses, references).corpus
    assert kept["text"][1]["name"] == "chrF2" and "nrefs:1" in kept["text"][1]["signature"]
    with np.load(tmp_path / "evaluation.npz") as arrays:
        assert arrays["chrF2"].shape == arrays["nll"].shape == (6,)
    table = (tmp_path / "evaluation.md").read_text()
    assert "| BLEU |" in table and "Perplexity a symbol" in table
    model = run.load(device="cpu")
    prompt = run.prepare(written[0]["source"]).inputs
    alone = model.answer(prompt, beams=2)[0, prompt.shape[1] :].tolist()
    assert hypotheses[0] == model.spelled(alone)
