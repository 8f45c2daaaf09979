import math
import sys

import numpy as np
import pytest
import tokenizers
import torch

from damcha.analysis.text_scores import bart_score, bart_scorer, bleu, chrf
from damcha.errors import InputError

WORDS = "the a cat dog sat ran on mat big red".split()


def test_bleu_by_hand():
    # Precisions of 1 to 4 words: 5/6, 3/5, 1/4 and 0/3; sacrebleu takes 1/2 for the first zero.
    found = bleu(["the cat sat on a mat"], [["the cat sat on the mat"]])
    expected = 100 * math.exp(np.log([5 / 6, 3 / 5, 2 / 4, 1 / 3]).mean())
    assert found.corpus == pytest.approx(expected)
    short = bleu(["the cat sat on"], [["the cat sat on the mat"]])
    assert short.corpus == pytest.approx(100 * math.exp(1 - 6 / 4))  # the penalty of brevity
    assert found.signature.startswith("nrefs:1|case:mixed") and "|version:2." in found.signature


def test_chrf_by_hand():
    # Characters shared of "abc" and "abd": 2 of 3, then 1 of 2, then 0 of 1, in both directions.
    found = chrf(["abc", "xyz"], [["abd"], ["xyz"]])
    np.testing.assert_allclose(found.examples, [100 * (2 / 3 + 1 / 2 + 0) / 3, 100])
    # Of the corpus counts are added first: 5/6, 3/4 and 1/2.
    assert found.corpus == pytest.approx(100 * (5 / 6 + 3 / 4 + 1 / 2) / 3)
    assert "nc:6|nw:0" in found.signature


def test_examples_may_differ_in_their_references():
    many = [["the red dog ran on", "the cat sat on the mat"], ["a big dog ran on"]]
    hypotheses = ["the cat sat on the mat", "a big dog ran on"]
    for score in (bleu, chrf):
        found = score(hypotheses, many)
        assert found.corpus == pytest.approx(100) and found.signature.startswith("nrefs:var")


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a"], [["a"], ["b"]], "those of 2 examples for 1 hypotheses"),
        ([], [], "at least one example"),
        (["a", "b"], [["a"], []], r"example 1 has \[\]; give a list"),
        (["a"], ["a"], "example 0 has 'a'; give a list"),
    ],
)
def test_what_cannot_be_scored(hypotheses, references, message):
    for score in (bleu, chrf, lambda *pair: bart_score(*pair, scorer=None)):
        with pytest.raises(InputError, match=message):
            score(hypotheses, references)


def test_a_missing_package_is_one_sentence(monkeypatch, tmp_path):
    for name in ("sacrebleu", "sacrebleu.metrics", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"sacrebleu is not installed; run pip install 'damcha"):
        bleu(["a"], [["a"]])
    with pytest.raises(InputError, match="transformers is not installed"):
        bart_scorer(tmp_path)


# BARTScore ------------------------------------------------------------------------------------


def test_both_directions_and_the_mean_over_references():
    table = {("r1", "h"): -1.0, ("r2", "h"): -3.0, ("h", "r1"): -5.0, ("h", "r2"): -2.0,
             ("s", "i"): -4.0, ("i", "s"): -6.0}  # fmt: skip

    def scorer(given, texts):
        return np.array([table[pair] for pair in zip(given, texts, strict=True)])

    found = bart_score(["h", "i"], [["r1", "r2"], ["s"]], scorer, "stub")
    np.testing.assert_array_equal(found.precision, [-2, -4])
    np.testing.assert_array_equal(found.recall, [-3.5, -6])
    np.testing.assert_array_equal(found.f, [-2.75, -5])


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """A tiny BART with random weights, and a tokenizer of ten words."""
    import transformers

    folder = tmp_path_factory.mktemp("bart")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    names = {word: k for k, word in enumerate([*special, *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)  # fmt: skip
    config = transformers.BartConfig(
        vocab_size=len(names), d_model=8, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=8,
        decoder_ffn_dim=8, max_position_embeddings=16, init_std=1.0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BartForConditionalGeneration(config).eval()
        model.requires_grad_(False)
    model.save_pretrained(folder)
    return folder, model


def test_a_text_is_scored_by_its_own_tokens(bart):
    folder, model = bart
    given, texts = ["the cat", "a big red dog ran"], ["the cat sat on the mat", "dog"]
    found = bart_scorer(folder, batch=2)(given, texts)
    for k in range(2):  # one at a time there is no padding
        source, target = (
            torch.tensor([[0, *(4 + WORDS.index(word) for word in text.split()), 2]])
            for text in (given[k], texts[k])
        )
        shifted = torch.cat((torch.tensor([[2]]), target[:, :-1]), 1)
        logits = model(input_ids=source, decoder_input_ids=shifted).logits
        log_p = logits.log_softmax(-1).gather(-1, target[..., None])
        assert found[k] == pytest.approx(float(log_p.mean()), rel=1e-4)
    assert bart_scorer(folder, batch=1)(given, texts) == pytest.approx(found, rel=1e-5)


def test_a_folder_without_safetensors_is_refused(bart, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        bart_scorer(tmp_path / "none")
    folder, model = bart
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be opened as a sequence-to-sequence model"):
        bart_scorer(tmp_path)


def test_another_kind_of_model_is_refused(bart, tmp_path):
    import transformers

    for file in bart[0].glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = transformers.T5Config(
        vocab_size=14, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="holds a model of type 't5', not bart"):
        bart_scorer(tmp_path)
