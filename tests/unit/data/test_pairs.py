import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from damcha.config import DataConfig
from damcha.data import load_dataset, load_pairs, pair_batch, pairs
from damcha.data.subwords import train_subwords
from damcha.errors import InputError
from damcha.symbols import Bytes, Marks

DATA = Path(__file__).parents[2] / "data"
SPLITS = ("train", "valid", "test")


def config(name):
    return DataConfig(dataset=name, seq_len=8)


@pytest.fixture
def en_de(tmp_path):
    lines = ["en\tde\tsource", "Save.\tSichern.\tapps", "A\u2028B\tÄ\tapps", "Open it\tÖffne es\tx"]
    for name in SPLITS:
        (tmp_path / f"{name}.tsv.xz").write_bytes(lzma.compress("\n".join(lines).encode() + b"\n"))
    return tmp_path


# The sets -----------------------------------------------------------------------------------------


def test_wmt14():
    parts = [load_pairs(config("wmt14"), DATA / "wmt14", split) for split in SPLITS]
    assert [len(part) for part in parts] == [400, 100, 100]
    first = parts[0]
    assert first.sources[3].startswith("Returns True when A and B are numerical values")
    assert first.targets[3].startswith("Gibt True zurück, wenn A und B numerische Werte sind")
    assert first.groups.tolist() == list(range(400))
    assert "excerpt: 400 of 4,508,785 pairs" in first.source
    assert not first.sources.bytes.flags.writeable


def test_common_gen_groups_the_references_of_a_concept_set():
    train, _, test = (load_pairs(config("common_gen"), DATA / "common_gen", s) for s in SPLITS)
    assert train.sources[3] == "preface contain help acknowledgment"
    assert (
        train.targets[3] == "The preface contained an acknowledgment of those who had helped her."
    )
    assert (len(train), len(np.unique(train.groups))) == (407, 400)
    for group in np.unique(train.groups):
        assert len({train.sources[k] for k in np.flatnonzero(train.groups == group)}) == 1
    assert {test.targets[k] for k in range(len(test))} == {""}  # as published


def test_en_de_lines_end_at_line_feeds_alone(en_de):
    found = load_pairs(config("en_de"), en_de, "valid")
    assert [found.sources[k] for k in range(3)] == ["Save.", "A\u2028B", "Open it"]
    assert [found.targets[k] for k in range(3)] == ["Sichern.", "Ä", "Öffne es"]
    assert "stands in for WMT14 and is not it" in found.source
    with pytest.raises(IndexError):
        found.sources[3]


def test_concepts(tmp_path):
    rows = [
        {"concept_set_idx": k // 2, "concepts": ["a", "b"], "target": f"{k}."} for k in range(4)
    ]
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = load_pairs(config("concepts"), tmp_path, "valid")
    assert found.groups.tolist() == [0, 0, 1, 1] and found.sources[2] == "a b"
    assert found.targets[3] == "3."


def test_to_a_language_model_pairs_are_lines(en_de):
    data = load_dataset(config("en_de"), en_de, "train")
    expected = "Save.\tSichern.\nA\u2028B\tÄ\nOpen it\tÖffne es\n"
    assert data.bytes.tobytes().decode() == expected
    assert data.parts == {"pairs": (0, len(expected.encode()))}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("7", "None for a concept_set_idx"),
        ('{"concept_set_idx": -1}', "-1 for a concept_set_idx"),
        ('{"concept_set_idx": 1, "concepts": "ab"}', "set 1 has no list of words"),
        ('{"concept_set_idx": 1, "concepts": [1]}', "set 1 has no list of words"),
        ('{"concept_set_idx": 1, "concepts": ["a"]}', "row 1 lacks its source or target"),
    ],
)
def test_wrong_concepts(line, message, tmp_path):
    (tmp_path / "train.jsonl").write_text(line)
    with pytest.raises(InputError, match=f"train.jsonl: .*{message}"):
        load_pairs(config("concepts"), tmp_path, "train")


def test_wrong_tables_of_sentences(tmp_path):
    (tmp_path / "train.tsv").write_text("english\tgerman\nYes\tJa\n")
    with pytest.raises(InputError, match="no columns en and de in its first line"):
        load_pairs(config("en_de"), tmp_path, "train")
    (tmp_path / "train.tsv").write_text("en\tde\nYes\tJa\nNo\n")
    with pytest.raises(InputError, match="row 1 lacks its source or target"):
        load_pairs(config("en_de"), tmp_path, "train")
    (tmp_path / "train.tsv").write_text("en\tde\n")
    with pytest.raises(InputError, match=r"row 0 lacks|no pairs in it"):
        load_pairs(config("en_de"), tmp_path, "train")
    with pytest.raises(InputError, match="dataset=enwik8: not a set of pairs; choose from wmt14"):
        load_pairs(config("enwik8"), tmp_path, "train")


@pytest.mark.parametrize("cells", [["text"], [{"en": "Yes"}], [None], [{"en": "Yes", "de": None}]])
def test_tables_without_translations(cells, tmp_path):
    pq.write_table(pa.table({"translation": cells}), tmp_path / "train-0.parquet")
    with pytest.raises(InputError, match=r"wmt14: row 0 (holds no translation|lacks its source)"):
        load_pairs(config("wmt14"), tmp_path, "train")


def test_text_is_bounded(en_de, monkeypatch):
    monkeypatch.setattr(pairs, "MAX_LINE", 6)
    with pytest.raises(InputError, match="a text of 8 bytes after 0; at most 6 are read"):
        load_pairs(config("en_de"), en_de, "train")
    monkeypatch.setattr(pairs, "MAX_LINE", 100)
    monkeypatch.setattr(pairs, "MAX_TEXT", 9)
    with pytest.raises(InputError, match="and 9 in all"):
        load_pairs(config("en_de"), en_de, "train")


# Rows of symbols ----------------------------------------------------------------------------------


def test_a_pair_is_source_separator_target_end_and_the_loss_counts_the_target(en_de):
    data = load_pairs(config("en_de"), en_de, "train")
    batch = pair_batch(data, [2, 0], Bytes(), 24)
    marks = Marks(256)
    assert (marks.separator, marks.end, marks.pad, marks.n_symbols) == (256, 257, 258, 259)
    expected = [*b"Save.", 256, *b"Sichern.", 257, *[258] * 9]
    assert batch.symbols[1].tolist() == expected
    assert batch.loss_mask[1].tolist() == [False] * 6 + [True] * 9 + [False] * 9
    assert batch.prompt_lengths.tolist() == [8, 6] and batch.lengths.tolist() == [18, 15]
    assert not batch.cut.any()
    for row, k in enumerate([2, 0]):
        assert Bytes().decode(batch.symbols[row][batch.loss_mask[row]]) == data.targets[k]


def test_what_does_not_fit_gives_up_its_source_first_and_never_ends_early(en_de):
    data = load_pairs(config("en_de"), en_de, "train")
    (en_de / "test.tsv").write_text("en\tde\nabcdefghij\tÄ\n")
    long = load_pairs(config("en_de"), en_de, "test")
    row = pair_batch(long, [0], Bytes(), 10)
    assert row.symbols[0].tolist() == [*b"abcdef", 256, *"Ä".encode(), 257]
    assert row.cut.tolist() == [True]
    row = pair_batch(data, [0], Bytes(), 8)
    assert row.symbols[0].tolist() == [*b"Sav", 256, *b"Sich"]  # no END
    assert row.loss_mask[0].tolist() == [False] * 4 + [True] * 4
    assert row.lengths.tolist() == [8]
    row = pair_batch(data, [1], Bytes(), 5)  # A, U+2028 | Ä
    assert row.symbols[0].tolist() == [ord("A"), 256, *"Ä".encode(), 257]
    with pytest.raises(InputError, match="seq_len=3: a pair needs 4 symbols or more"):
        pair_batch(data, [0], Bytes(), 3)


def test_rows_of_subwords_spell_their_texts():
    data = load_pairs(config("wmt14"), DATA / "wmt14", "train")
    texts = [side[k] for side in (data.sources, data.targets) for k in range(len(data))]
    tokenizer = train_subwords(texts, 600)
    batch = pair_batch(data, range(50), tokenizer, 400)
    assert not batch.cut.any() and (batch.lengths < 400).all()
    for k in range(50):
        row, start = batch.symbols[k], batch.prompt_lengths[k]
        assert tokenizer.decode(row[:start]) == data.sources[k]
        assert tokenizer.decode(row[start:]) == data.targets[k]
        assert row[start - 1] == 600 and row[batch.lengths[k] - 1] == 601
        assert batch.loss_mask[k].sum() == batch.lengths[k] - start
