import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from damcha.config import DataConfig
from damcha.data import load_dataset, load_pairs, tables
from damcha.data.tables import class_names, find_rows, labels
from damcha.errors import ConfigError, InputError

DATA = Path(__file__).parents[2] / "data"
IMAGENET = DataConfig(dataset="imagenet", image_size=16, channels=3, n_classes=3)
CIFAR10 = DataConfig(dataset="cifar10", image_size=32, channels=3)


def png(k, size=32):
    file = io.BytesIO()
    Image.new("RGB", (size, size), (k, 2 * k, 3 * k)).save(file, "PNG")
    return file.getvalue()


def picture_table(count, column="image", label="label", names=("cat", "dog", "owl"), first=0):
    """A table as Hugging Face writes it: pictures as {bytes, path}, names beside the schema."""
    features = {column: {"_type": "Image"}, label: {"_type": "ClassLabel", "names": names}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = range(first, first + count)
    cells = [{"bytes": png(k), "path": f"{k}.png"} for k in rows]
    found = pa.table({column: cells, label: pa.array([k % 3 for k in rows], pa.int64())})
    return found.replace_schema_metadata(about)


def write_arrow(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


@pytest.fixture(params=["parquet", "data/parquet", "arrow"])
def imagenet(request, tmp_path):
    """Seven training and two validation pictures, in two files of several row groups."""
    parts = {
        "train": (picture_table(4), picture_table(3, first=4)),
        "validation": (picture_table(2),),
    }
    for split, found in parts.items():
        for k, table in enumerate(found):
            name = f"{split}-{k:05}-of-{len(found):05}.parquet"
            if request.param == "arrow":
                write_arrow(tmp_path / split / f"data-{k:05}-of-{len(found):05}.arrow", table)
            else:
                folder = tmp_path / request.param.removesuffix("parquet")
                folder.mkdir(exist_ok=True)
                pq.write_table(table, folder / name, row_group_size=2)
    return tmp_path


def test_imagenet_as_a_table(imagenet):
    train = load_dataset(IMAGENET, imagenet, "train")
    assert train.images.shape == (7, 16, 16, 3) == train.images[:].shape
    assert len(train.images) == 7
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert train.class_names == ("cat", "dog", "owl")
    chosen = train.images[np.array([6, 0, 4])]  # a colour tells each picture from the others
    assert chosen[:, 3, 3].tolist() == [[6, 12, 18], [0, 0, 0], [4, 8, 12]]
    assert train.images[5][0, 0].tolist() == [5, 10, 15]
    assert "excerpt: 7 of 1,281,167" in train.source
    assert len(load_dataset(IMAGENET, imagenet, "valid").images) == 2  # its own, not held out


def test_cifar_and_fashion_tables_hold_out_validation(tmp_path):
    pq.write_table(picture_table(20, column="img"), tmp_path / "train-00000-of-00001.parquet")
    train, valid = (load_dataset(CIFAR10, tmp_path, split) for split in ("train", "valid"))
    assert len(train.images) == 18 and len(valid.images) == 2
    assert valid.images[1][0, 0].tolist() == [19, 38, 57] and valid.labels.tolist() == [0, 1]
    with pytest.raises(ConfigError, match="set image_size=32 channels=3"):
        load_dataset(DataConfig(dataset="cifar10"), tmp_path, "train")


def test_a_table_without_names_has_numbers(tmp_path):
    table = picture_table(4).replace_schema_metadata({})
    pq.write_table(table, tmp_path / "train-0.parquet")
    assert load_dataset(IMAGENET, tmp_path, "train").class_names == ("0", "1", "2")


def test_wrong_tables(tmp_path):
    path = tmp_path / "train-0.parquet"
    pq.write_table(picture_table(4, names=("cat",)), path)
    with pytest.raises(InputError, match="label 2 in the train part, but there are only 1 classes"):
        load_dataset(IMAGENET, tmp_path, "train")
    pq.write_table(picture_table(4, column="photo"), path)
    data = load_dataset(IMAGENET, tmp_path, "train")
    with pytest.raises(InputError, match=r"no column image in the table \(it has photo, label\)"):
        data.images[0]
    pq.write_table(pa.table({"image": [b"no picture"], "label": [0]}), path)
    with pytest.raises(InputError, match="row 0"):
        load_dataset(IMAGENET, tmp_path, "train").images[0]
    pq.write_table(pa.table({"image": [None, None], "label": [0, 1]}), path)
    with pytest.raises(InputError, match="row 1 of column image holds no picture"):
        load_dataset(IMAGENET, tmp_path, "train").images[1]
    for wrong in (["a"], [None], [0.5]):
        pq.write_table(pa.table({"image": [b""], "label": wrong}), path)
        with pytest.raises(InputError, match="column label has values that are not integers"):
            load_dataset(IMAGENET, tmp_path, "train")
    pq.write_table(pa.table({"image": [b""], "label": [-1]}), path)
    with pytest.raises(InputError, match="published without labels; use the validation part"):
        load_dataset(IMAGENET, tmp_path, "train")


@pytest.mark.parametrize(
    "about",
    [b"{", b'{"info": 3}', b'{"info": {"features": {"label": {"names": 4}}}}', b"[" * 100_000],
)
def test_a_damaged_description(about, tmp_path):
    table = picture_table(2).replace_schema_metadata({b"huggingface": about})
    pq.write_table(table, tmp_path / "train-0.parquet")
    rows = find_rows(tmp_path, "train", "")
    assert labels(rows, "label").tolist() == [0, 1]
    with pytest.raises(InputError, match="the names of column label are damaged"):
        class_names(rows, "label")


def test_damaged_and_cut_files(tmp_path):
    path = tmp_path / "train-00000-of-00001.parquet"
    content = (DATA / "common_gen" / path.name).read_bytes()
    config = DataConfig(dataset="common_gen")
    for damaged in (b"", content[:-9], content[:5000], b"PAR1" + bytes(40) + b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"train-00000-of-00001\.parquet: damaged"):
            load_pairs(config, tmp_path, "train")


def test_offsets_of_an_arrow_file_are_checked_before_they_are_followed(tmp_path):
    path = tmp_path / "train" / "data-0.arrow"
    table = pa.table({"image": pa.array([b"ab", b"cd"], pa.binary()), "label": [0, 1]})
    write_arrow(path, table)
    content = bytearray(path.read_bytes())
    offsets = np.array([0, 2, 4], "<i4").tobytes()
    assert content.count(offsets) == 1
    place = content.index(offsets)
    content[place : place + 12] = np.array([0, 2, 2**30], "<i4").tobytes()
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"data-0\.arrow: damaged"):
        load_dataset(IMAGENET, tmp_path, "train")


def test_sizes_are_bounded_by_the_header_before_anything_is_read(tmp_path, monkeypatch):
    pq.write_table(picture_table(4), tmp_path / "train-0.parquet")
    monkeypatch.setattr(tables, "MAX_GROUP_BYTES", 100)
    with pytest.raises(InputError, match=r"row group 0 unpacks to .* more than 100 and"):
        load_dataset(IMAGENET, tmp_path, "train")
    monkeypatch.setattr(tables, "MAX_GROUP_BYTES", 2**20)
    monkeypatch.setattr(tables, "MAX_ROWS", 3)
    with pytest.raises(InputError, match="and 4 rows"):
        load_dataset(IMAGENET, tmp_path, "train")
    write_arrow(tmp_path / "validation" / "a.arrow", picture_table(4))
    with pytest.raises(InputError, match=r"a\.arrow: 4 rows; a part has 1 to 3"):
        load_dataset(IMAGENET, tmp_path, "valid")


def test_files_of_one_part_have_the_same_columns(tmp_path):
    pq.write_table(picture_table(2), tmp_path / "train-0.parquet")
    pq.write_table(picture_table(2, column="photo"), tmp_path / "train-1.parquet")
    with pytest.raises(InputError, match=r"train-1\.parquet: other columns than train-0"):
        load_dataset(IMAGENET, tmp_path, "train")


# The datasets library -----------------------------------------------------------------------------


def test_without_the_library_it_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"hf:wmt/wmt14 needs the datasets .*'damcha\[data\]'"):
        load_pairs(DataConfig(dataset="wmt14"), "hf:", "train")


def test_the_library_reads_the_same(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    for name in ("wmt14", "common_gen"):
        config = DataConfig(dataset=name)
        for split in ("train", "valid", "test"):
            found = load_pairs(config, f"hf:{DATA / name}", split)
            assert found.targets.bytes.tobytes() == (
                load_pairs(config, DATA / name, split).targets.bytes.tobytes()
            )
    folder = tmp_path / "pictures"
    folder.mkdir()
    pq.write_table(picture_table(20, column="img"), folder / "train-00000-of-00001.parquet")
    found = load_dataset(CIFAR10, f"hf:{folder}", "valid")
    assert np.array_equal(found.images[:], load_dataset(CIFAR10, folder, "valid").images[:])
    assert found.class_names == ("cat", "dog", "owl")
    with pytest.raises(InputError, match=r"could not load its test part .*; check the name"):
        load_dataset(CIFAR10, f"hf:{folder}", "test")
