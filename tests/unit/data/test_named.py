import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from damcha.cli import main
from damcha.config import DataConfig
from damcha.data import load_dataset, published
from damcha.data.published import check_count, check_sum
from damcha.errors import ConfigError, InputError

DATA = Path(__file__).parents[2] / "data"
SPLITS = ("train", "valid", "test")
IMAGENET = DataConfig(dataset="imagenet", image_size=16, channels=3, n_classes=3)


def text(name, **settings):
    return DataConfig(dataset=name, **{"seq_len": 8, **settings})


# Counts and sums ----------------------------------------------------------------------------------


def test_a_whole_set_an_excerpt_and_another_set_are_told_apart():
    assert check_count("wmt14", "test", 3003) == ""
    assert check_count("cifar10", "valid", 50_000) == ""  # held out from the training part
    assert check_count("common_gen", "valid", 7, "pairs") == (
        " Here an excerpt: 7 of 4,018 pairs (valid)."
    )
    assert check_count("image_folder", "train", 5) == ""
    with pytest.raises(InputError, match=r"cifar10: the test part has 10,001 .* the 10,000 that"):
        check_count("cifar10", "test", 10_001)


def test_a_file_of_the_published_size_must_have_the_published_sum(tmp_path, monkeypatch):
    for name in ("enwik8", "text8"):
        content = zipfile.ZipFile(DATA / "wikipedia" / f"{name}.zip").read(name)
        (tmp_path / name).write_bytes(content)
        load_dataset(text(name), tmp_path, "train")  # an excerpt has no sum
        monkeypatch.setitem(published.MD5, name, (20_000, "0" * 32))
        with pytest.raises(InputError, match=rf"{name}: its MD5 sum is [0-9a-f]{{32}}, not the"):
            load_dataset(text(name), tmp_path, "train")
    check_sum("text8", 3, lambda: b"abc")  # another size
    monkeypatch.setitem(published.MD5, "text8", (3, "900150983cd24fb0d6963f7d28e17f72"))
    check_sum("text8", 3, lambda: b"abc")  # the sum of RFC 1321


def test_published_splits_of_the_two_texts_are_90_5_and_5_million_bytes():
    for name in ("enwik8", "text8"):
        n = published.MD5[name][0]
        cuts = {"train": n * 18 // 20, "valid": n // 20, "test": n // 20}
        assert cuts == published.COUNTS[name]


# enwik8, text8 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_wikipedia_is_cut_by_bytes(name, tmp_path):
    content = zipfile.ZipFile(DATA / "wikipedia" / f"{name}.zip").read(name)
    (tmp_path / name).write_bytes(content)
    for root in (DATA / "wikipedia", DATA / "wikipedia" / f"{name}.zip", tmp_path):
        parts = [load_dataset(text(name), root, split) for split in SPLITS]
        assert [len(part.bytes) for part in parts] == [18_000, 1_000, 1_000]
        assert b"".join(part.bytes.tobytes() for part in parts) == content
        assert "excerpt: 18,000 of 90,000,000 bytes" in parts[0].source
        assert parts[0].parts == {name: (0, 18_000)}


def test_text8_has_letters_and_spaces_alone(tmp_path):
    (tmp_path / "text8").write_bytes(b"Not text8, this " * 100)
    with pytest.raises(InputError, match="not text8, which has a to z and spaces alone"):
        load_dataset(text("text8"), tmp_path, "train")


def test_a_longer_file_is_not_enwik8(tmp_path, monkeypatch):
    monkeypatch.setitem(published.MD5, "enwik8", (1_000, ""))
    with pytest.raises(InputError, match=r"20,000 bytes, more than the 1,000 of enwik8; cut it"):
        load_dataset(text("enwik8"), DATA / "wikipedia", "train")


# The mix ------------------------------------------------------------------------------------------

NINE = (
    "sotu", "moby_dick", "kjv_bible", "wordnet", "foldoc", "jargon_file", "devils_dictionary",
    "fortunes", "software_docs",
)  # fmt: skip


def test_the_mix_is_nine_subcorpora_and_no_other(tmp_path):
    for name in NINE:
        (tmp_path / f"{name}.test.txt").write_text(f"Words of {name}.\n")
    data = load_dataset(text("mix"), tmp_path, "test")
    assert set(data.parts) == set(NINE)
    assert "of 957,727 bytes" in data.source and "stands in for the paper's Mix" in data.source
    (tmp_path / "blog.test.txt").write_text("More words.")
    with pytest.raises(InputError, match="also blog in its test part"):
        load_dataset(text("mix"), tmp_path, "test")
    (tmp_path / "blog.test.txt").rename(tmp_path / "blog.txt")
    (tmp_path / "wordnet.test.txt").unlink()
    with pytest.raises(InputError, match=r"no wordnet in its test part; put NAME\.train\.txt"):
        load_dataset(text("mix"), tmp_path, "test")
    with pytest.raises(InputError, match="not a folder"):
        load_dataset(text("mix"), tmp_path / "blog.txt", "test")


# ImageNet's folders -------------------------------------------------------------------------------


def test_imagenet_folders():
    train = load_dataset(IMAGENET, DATA / "imagenet_tree", "train")
    valid = load_dataset(IMAGENET, DATA / "imagenet_tree", "valid")
    assert train.images.shape == (6, 16, 16, 3) and valid.images.shape == (3, 16, 16, 3)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert [name.split(",")[0] for name in train.class_names] == [
        line.partition(" ")[2].split(",")[0]
        for line in (DATA / "imagenet_tree" / "LOC_synset_mapping.txt").read_text().splitlines()
    ]
    assert "excerpt: 6 of 1,281,167 images" in train.source
    assert len(np.unique(train.images[:].reshape(6, -1), axis=0)) == 6


# What is missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("imagenet", r"train/WNID and val/WNID .*ILSVRC/imagenet-1k"),
        ("enwik8", r"put enwik8\.zip of"),
        ("text8", r"put text8\.zip of"),
        ("mix", "nine sub-corpora there: sotu"),
        ("wmt14", r"Parquet files of the Hugging Face set wmt/wmt14, configuration de-en, there"),
        ("common_gen", "allenai/common_gen there"),
        ("en_de", r"put train\.tsv"),
        ("concepts", r"put train\.jsonl"),
    ],
)
def test_what_is_missing_is_told_with_where_to_put_it(name, wanted, tmp_path):
    with pytest.raises(InputError, match=f"no such file or folder; .*{wanted}"):
        load_dataset(text(name), tmp_path / "gone", "train")
    with pytest.raises(InputError, match=wanted):
        load_dataset(text(name), tmp_path, "train")


def test_a_set_that_is_not_at_hugging_face(tmp_path):
    for name in ("enwik8", "objects10", "en_de"):
        with pytest.raises(InputError, match=r"hf:.*; put "):
            load_dataset(text(name), "hf:", "train")


def test_too_short_for_an_example():
    with pytest.raises(InputError, match="enwik8: the valid part has 1,000 bytes, fewer than"):
        load_dataset(text("enwik8", seq_len=1024), DATA / "wikipedia", "valid")


# From the command ---------------------------------------------------------------------------------

TINY = (
    "d_model=16 n_heads=2 n_layers=1 d_ff=16 hidden_dims=8 epochs=1 steps_per_epoch=2 "
    "batch_size=2 warmup_steps=1 validation_examples=4"
).split()


@pytest.mark.parametrize(
    ("preset", "folder", "settings"),
    [
        ("enwik8", "wikipedia", []),
        ("text8", "wikipedia", []),
        ("wmt14", "wmt14", []),
        ("common-gen", "common_gen", []),
        ("imagenet", "imagenet_tree", ["image_size=16"]),
        ("imagenet-classifier", "imagenet_tree", ["image_size=16"]),
    ],
)
def test_presets_train(preset, folder, settings, tmp_path):
    words = [word for pair in (*TINY, *settings) for word in ("--set", pair)]
    out = ["--data", str(DATA / folder), "--out", str(tmp_path / "run"), "--cpu"]
    result = CliRunner().invoke(main, ["train", preset, *out, *words])
    assert result.exit_code == 0, result.output
    assert "Here an excerpt" in (tmp_path / "run" / "README.md").read_text()


def test_the_datasets_library_is_imported_for_hf_alone(tmp_path):
    shutil.copytree(DATA / "wmt14", tmp_path / "wmt14")
    code = (
        "import sys\nfrom damcha.config import DataConfig\nfrom damcha.data import load_dataset\n"
        f"load_dataset(DataConfig(dataset='wmt14'), {str(tmp_path / 'wmt14')!r}, 'test')\n"
        "assert not {'datasets', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_task_and_its_data_belong_together():
    from damcha.presets import PRESETS

    with pytest.raises(
        ConfigError, match=r"'language_modelling' cannot be trained on .*'imagenet'"
    ):
        PRESETS["text"].override({"dataset": "imagenet"})
    with pytest.raises(ConfigError, match=r"'image_autoregression' cannot be .*'wmt14'"):
        PRESETS["fashion"].override({"dataset": "wmt14"})
