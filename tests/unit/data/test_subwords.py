import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damcha.data import subwords
from damcha.data.subwords import Subwords, read_subwords, train_subwords
from damcha.errors import ConfigError, InputError
from damcha.symbols import TOKENIZER, Bytes

TEXTS = ["the cat sat on the mat", "the bat and the rat", "Größe und Maße", "the the the"] * 3
TRAINED = train_subwords(TEXTS, 290)


@given(st.text())
def test_every_text_is_spelled_and_comes_back(text):
    for tokenizer in (Bytes(), TRAINED):
        symbols = tokenizer.encode(text)
        assert tokenizer.decode([*symbols, tokenizer.size, tokenizer.size + 2]) == text
        assert all(0 <= symbol < tokenizer.size for symbol in symbols)
        assert len(symbols) <= len(text.encode())


def test_frequent_neighbours_become_one_symbol():
    assert b" the" in TRAINED.spelled
    assert len(TRAINED.encode(" the the")) == 2
    assert TRAINED.spelled[:256] == [bytes([byte]) for byte in range(256)]


def test_equal_texts_give_equal_symbols_in_any_order():
    assert train_subwords(reversed(TEXTS), 290).merges == TRAINED.merges
    assert train_subwords(iter(TEXTS), 290).to_json() == TRAINED.to_json()


def test_few_texts_give_fewer_symbols():
    assert train_subwords(["ab ab"], 5000).size < 260
    assert train_subwords([], 300).size == 256
    for size in (255, subwords.MAX_SYMBOLS + 1):
        with pytest.raises(ConfigError, match=f"vocabulary={size}: a tokenizer has 256 to 262,144"):
            train_subwords(TEXTS, size)


def test_lone_surrogates_and_bytes_that_are_no_text():
    assert (
        TRAINED.decode(TRAINED.encode("a\ud800"))
        == "a?"
        == Bytes().decode(Bytes().encode("a\ud800"))
    )
    assert TRAINED.decode([0xC3]) == Bytes().decode([0xC3]) == "\ufffd"


def test_the_file_reads_back(tmp_path):
    path = tmp_path / TOKENIZER
    path.write_text(TRAINED.to_json())
    found = read_subwords(path)
    assert found.merges == TRAINED.merges and found.spelled == TRAINED.spelled
    assert found.encode("the Größe of the mat") == TRAINED.encode("the Größe of the mat")
    assert set(json.loads(path.read_text())) == {"format_version", "merges"}


def merges(*pairs):
    return json.dumps({"format_version": 1, "merges": pairs})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a tokenizer that damcha wrote"),
        ("7", "not a tokenizer that damcha wrote"),
        ("[" * 100_000, "not a tokenizer that damcha wrote"),
        ('{"format_version": 2, "merges": []}', "not a tokenizer that damcha wrote"),
        ('{"format_version": 1, "merges": [], "pre_tokenizer": {}}', "not a tokenizer that"),
        (merges([1]), "not a tokenizer that damcha wrote"),
        (merges([1, 2, 3]), "not a tokenizer that damcha wrote"),
        (merges([1, 256]), "merge 0 of a tokenizer joins .* not two symbols from 0 to 255"),
        (merges([1, -1]), "not two symbols from 0 to 255"),
        (merges([1, True]), "not two symbols from 0 to 255"),
        (merges([1, "a"]), "not two symbols from 0 to 255"),
        (merges([1, 2], [257, 3]), "merge 1 .* from 0 to 256"),
        (merges([1, 2], [1, 2]), "two merges of a tokenizer spell the same bytes"),
        # each joins the one before with itself: 2, 4, … 512 bytes
        (
            merges([1, 1], *([k, k] for k in range(256, 300))),
            "merge 8 .* spells 512 bytes; at most",
        ),
    ],
)
def test_files_that_are_no_tokenizer(content, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_subwords(path)


def test_sizes_are_bounded(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b" " * (subwords.MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match="more than 4,000,000 bytes; not a tokenizer"):
        read_subwords(path)
    monkeypatch.setattr(subwords, "MAX_SYMBOLS", 257)
    with pytest.raises(InputError, match="a tokenizer of 258 symbols; at most 257"):
        Subwords([(1, 2), (3, 4)])
    with pytest.raises(InputError, match="no such file; this run has no tokenizer"):
        read_subwords(Path(tmp_path / "gone.json"))
