import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from damcha.config import DataConfig
from damcha.data import archives, load_dataset
from damcha.errors import ConfigError, InputError

IDX = Path(__file__).parents[2] / "data" / "idx"
SPLITS = ("train", "valid", "test")

FASHION = DataConfig()
CIFAR10 = DataConfig(dataset="cifar10", image_size=32, channels=3, n_classes=10)
CIFAR100 = DataConfig(dataset="cifar100", image_size=32, channels=3, n_classes=100)
FOLDER = DataConfig(dataset="image_folder", image_size=16, channels=3, n_classes=3, patch_size=4)
TEXT = DataConfig(dataset="text", seq_len=8)


# Fashion-MNIST: the real files' first images -----------------------------------------------------


def test_idx_parts():
    train, valid, test = (load_dataset(FASHION, IDX, split) for split in SPLITS)
    assert [data.images.shape for data in (train, valid, test)] == [
        (36, 28, 28, 1), (4, 28, 28, 1), (20, 28, 28, 1),
    ]  # fmt: skip
    assert train.images.dtype == np.uint8 and train.labels.dtype == np.int64
    assert train.class_names[9] == "Ankle boot"
    assert test.labels[:5].tolist() == [9, 2, 1, 1, 6]  # the published order
    assert "Fashion-MNIST" in train.source and "MIT" in train.licence
    assert not train.images.flags.writeable
    raw = gzip.decompress((IDX / "train-images-idx3-ubyte.gz").read_bytes())
    joined = np.concatenate([train.images, valid.images])
    assert joined.tobytes() == raw[16:]


@pytest.fixture
def idx(tmp_path):
    """A copy of the four files, unpacked."""
    for path in IDX.glob("*.gz"):
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return tmp_path


def test_idx_plain_or_in_raw_or_in_pieces(idx):
    expected = load_dataset(FASHION, IDX, "train").images
    assert np.array_equal(load_dataset(FASHION, idx, "train").images, expected)
    packed = (IDX / "train-images-idx3-ubyte.gz").read_bytes()
    (idx / "train-images-idx3-ubyte").unlink()
    for piece in range(12):  # .part10 comes after .part9
        start, stop = len(packed) * piece // 12, len(packed) * (piece + 1) // 12
        name = f"train-images-idx3-ubyte.gz.part{piece}"
        (idx / name).write_bytes(packed[start:stop])
    assert np.array_equal(load_dataset(FASHION, idx, "train").images, expected)
    (idx / "raw").mkdir()
    for path in idx.glob("t*"):
        path.rename(idx / "raw" / path.name)
    assert np.array_equal(load_dataset(FASHION, idx, "train").images, expected)


def test_idx_missing(tmp_path):
    with pytest.raises(InputError, match=r"no train-images-idx3-ubyte.*fashion-mnist there"):
        load_dataset(FASHION, tmp_path, "train")
    with pytest.raises(InputError, match="no such file or folder; put train-images"):
        load_dataset(FASHION, tmp_path / "gone", "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "31,375 bytes where its header promises 31,376"),
        (lambda raw: raw + b"\0", "31,377 bytes where its header promises 31,376"),
        (lambda raw: b"", "not an IDX file .* nothing"),
        (lambda raw: raw[:9], "header promises"),
        (lambda raw: b"\0\0\x08\x01" + raw[4:], "with 3 axes .*00000801"),
        (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "header promises 79,228"),
        (lambda raw: gzip.compress(raw)[:-20], "cut off before its end"),
        (lambda raw: gzip.compress(raw)[:30] + b"\xff" * 900, "damaged"),
    ],
)
def test_idx_damaged(idx, change, message):
    path = idx / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        load_dataset(FASHION, idx, "train")


def test_idx_counts_and_labels_must_agree(idx):
    labels = idx / "train-labels-idx1-ubyte"
    raw = labels.read_bytes()
    labels.write_bytes(raw[:-1] + b"\x0a")
    with pytest.raises(InputError, match="label 10 in the train part, but there are only 10"):
        load_dataset(FASHION, idx, "train")
    shutil.copy(idx / "t10k-labels-idx1-ubyte", labels)
    with pytest.raises(InputError, match="40 images but its label file has 20 labels"):
        load_dataset(FASHION, idx, "train")


def test_configured_size_must_be_that_of_the_set():
    with pytest.raises(ConfigError, match=r"28×28 with 1 channel, .*set image_size=28 channels=1"):
        load_dataset(DataConfig(image_size=32), IDX, "train")
    with pytest.raises(ConfigError, match=r"not 28×28 with 3"):
        load_dataset(DataConfig(channels=3), IDX, "train")


# CIFAR: made here, as the published images have no licence ----------------------------------------


def cifar_file(n, n_labels, seed):
    rng = np.random.default_rng(seed)
    labels = np.stack([np.arange(n) % 10] * n_labels, 1)
    return np.concatenate([labels, rng.integers(0, 256, (n, 3072))], 1).astype(np.uint8).tobytes()


@pytest.fixture
def cifar10():
    files = {f"data_batch_{k}.bin": cifar_file(10 + k, 1, k) for k in range(1, 6)}
    names = "\n".join(f"class_{k}" for k in range(10)) + "\n\n"
    return files | {"test_batch.bin": cifar_file(20, 1, 0), "batches.meta.txt": names.encode()}


@pytest.fixture
def cifar100():
    names = "\n".join(f"class_{k}" for k in range(100)) + "\n"
    return {
        "train.bin": cifar_file(30, 2, 1), "test.bin": cifar_file(10, 2, 0),
        "fine_label_names.txt": names.encode(),
    }  # fmt: skip


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_cifar10_from_folder_parent_tar_and_folder_with_tar(tmp_path, cifar10):
    inner = write(tmp_path / "a" / "cifar-10-batches-bin", cifar10)
    packed = {f"cifar-10-batches-bin/{name}": content for name, content in cifar10.items()}
    (tmp_path / "b").mkdir()
    tar = write_tar(tmp_path / "b" / "cifar-10-binary.tar.gz", packed)
    plain = write_tar(tmp_path / "plain.tar", packed, "w")
    parts = [
        load_dataset(CIFAR10, root, "train")
        for root in (inner, inner.parent, tar, tar.parent, plain)
    ]
    for data in parts:
        assert data.images.shape == (59, 32, 32, 3)  # 65 in files of 11 … 15, 6 held out
        assert np.array_equal(data.images, parts[0].images)
        assert np.array_equal(data.labels, parts[0].labels)
        assert data.class_names == tuple(f"class_{k}" for k in range(10))
    first = np.frombuffer(cifar10["data_batch_1.bin"], np.uint8)[1:3073]
    assert np.array_equal(parts[0].images[0].transpose(2, 0, 1).ravel(), first)
    assert load_dataset(CIFAR10, tar, "valid").images.shape[0] == 6
    assert load_dataset(CIFAR10, tar, "test").images.shape[0] == 20


def test_objects10_is_read_as_cifar10(tmp_path, cifar10):
    tar = {f"cifar-10-batches-bin/{name}": content for name, content in cifar10.items()}
    write_tar(tmp_path / "objects10-binary.tar.gz", tar)
    data = load_dataset(CIFAR10.model_copy(update={"dataset": "objects10"}), tmp_path, "test")
    assert "GPL" in data.licence and "objects10" in data.source


def test_cifar100_uses_the_fine_label(tmp_path, cifar100):
    record = bytearray(cifar100["test.bin"])
    record[0], record[1] = 7, 93
    write(tmp_path / "cifar-100-binary", cifar100 | {"test.bin": bytes(record)})
    data = load_dataset(CIFAR100, tmp_path, "test")
    assert data.labels[0] == 93
    assert len(data.class_names) == 100
    assert load_dataset(CIFAR100, tmp_path, "train").images.shape == (27, 32, 32, 3)
    assert load_dataset(CIFAR100, tmp_path, "valid").images.shape == (3, 32, 32, 3)


def test_cifar_problems(tmp_path, cifar10):
    with pytest.raises(InputError, match=r"no data_batch_1\.bin; put cifar-10-binary\.tar\.gz"):
        load_dataset(CIFAR10, tmp_path, "train")
    lacking = {name: content for name, content in cifar10.items() if "_3" not in name}
    with pytest.raises(InputError, match=r"no data_batch_3\.bin in it"):
        load_dataset(CIFAR10, write(tmp_path / "lacking", lacking), "train")
    cut = cifar10 | {"data_batch_2.bin": cifar10["data_batch_2.bin"][:-1]}
    with pytest.raises(InputError, match=r"data_batch_2\.bin: 36,875 bytes are not a whole"):
        load_dataset(CIFAR10, write(tmp_path / "cut", cut), "train")
    with pytest.raises(InputError, match=r"test_batch\.bin: 0 bytes are not a whole"):
        load_dataset(CIFAR10, write(tmp_path / "none", cifar10 | {"test_batch.bin": b""}), "test")
    few = cifar10 | {"batches.meta.txt": b"cat dog"}
    with pytest.raises(InputError, match="label 9 in the test part, but there are only 2 classes"):
        load_dataset(CIFAR10, write(tmp_path / "few", few), "test")
    (tmp_path / "py" / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(InputError, match="Python version, a pickle"):
        load_dataset(CIFAR10, tmp_path / "py", "train")


def test_tar_is_never_extracted_and_links_are_not_followed(tmp_path, cifar10):
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in cifar10.items():
            member = tarfile.TarInfo(f"../../{name}")
            member.size = len(content)
            if name == "test_batch.bin":
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
            tar.addfile(member, io.BytesIO(content))
    before = sorted(tmp_path.iterdir())
    assert load_dataset(CIFAR10, path, "train").images.shape[0] == 59
    with pytest.raises(InputError, match=r"no test_batch\.bin in it"):
        load_dataset(CIFAR10, path, "test")
    assert sorted(tmp_path.iterdir()) == before


def test_tar_damaged(tmp_path, cifar10):
    path = write_tar(tmp_path / "cifar-10-binary.tar.gz", cifar10)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="cut off before its end"):
        load_dataset(CIFAR10, path, "train")
    path.write_bytes(gzip.compress(gzip.decompress(content)[:40_000]))
    with pytest.raises(InputError, match=r"cut inside|damaged"):
        load_dataset(CIFAR10, path, "train")
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises(InputError, match="not a tar archive"):
        load_dataset(CIFAR10, path, "train")


# Packing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_bombs_are_refused_while_they_unpack(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(archives, "MAX_BYTES", 2**20)
    path = tmp_path / "bomb"
    path.write_bytes(pack(bytes(3 * 2**20)))
    assert path.stat().st_size < 2**20
    with pytest.raises(InputError, match="bomb: unpacks to more than 1 MB"):
        archives.unpack(path)
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(InputError, match="bomb: larger than 1 MB"):
        archives.unpack(path)


def test_unpack_problems(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(InputError, match="file: cannot be read"):
        archives.unpack(path)
    path.write_bytes(lzma.compress(b"x" * 1000)[:-10])
    with pytest.raises(InputError, match="file: cut off"):
        archives.unpack(path)
    path.write_bytes(b"BZh9" + bytes(40))
    with pytest.raises(InputError, match="file: "):
        archives.unpack(path)
    path.write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(InputError, match="file: damaged"):
        archives.unpack(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "1"), archive.writestr("b", "2")
    with pytest.raises(InputError, match="a zip of 2 files, where one was expected"):
        archives.unpack(path)


# Folders of pictures ------------------------------------------------------------------------------


def save(path, colour, size=(20, 30), mode="RGB", format="JPEG"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, format)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "pictures"
    for k, name in enumerate(("n01", "n02", "n03")):
        for number in range(10):
            save(root / "train" / name / f"{name}_{number:02}.JPEG", (60 * k, number, 0))
        save(root / "val" / name / "ILSVRC2012_val_1.JPEG", (60 * k, 255, 0))
    save(root / "train" / "n01" / "grey.png", 9, mode="L", format="PNG")
    (root / "train" / "n01" / "._n01_00.JPEG").write_bytes(b"resource fork")
    (root / "train" / "n01" / "notes.txt").write_text("no picture")
    (root / "LOC_synset_mapping.txt").write_text("n01 penguin, bird\nn03 orange\n")
    return root


def test_folder(tree):
    train, valid = (load_dataset(FOLDER, tree, split) for split in ("train", "valid"))
    assert train.images.shape == (31, 16, 16, 3) and valid.images.shape == (3, 16, 16, 3)
    assert np.bincount(train.labels).tolist() == [11, 10, 10]
    assert train.class_names == ("penguin, bird", "n02", "orange")
    assert len(train.images) == 31
    whole = train.images[:]
    assert whole.dtype == np.uint8 and whole.shape == train.images.shape
    assert np.array_equal(train.images[5], whole[5])
    assert np.array_equal(train.images[np.array([7, 3, -1])], whole[[7, 3, -1]])
    assert np.array_equal(train.images[train.labels == 1], whole[train.labels == 1])
    assert abs(int(whole[-1, 0, 0, 0]) - 120) < 4
    grey = load_dataset(FOLDER.model_copy(update={"channels": 1}), tree, "valid").images[:]
    assert grey.shape == (3, 16, 16, 1)


def test_folder_without_val_holds_out_every_tenth(tree):
    shutil.rmtree(tree / "val")
    train, valid = (load_dataset(FOLDER, tree, split) for split in ("train", "valid"))
    assert (len(train.images), len(valid.images)) == (28, 3)
    assert set(valid.labels) == {0, 1, 2}
    assert not set(train.images.paths) & set(valid.images.paths)


def test_folder_problems(tree, tmp_path):
    with pytest.raises(InputError, match="no folder test/ in it"):
        load_dataset(FOLDER, tree, "test")
    save(tree / "val" / "n09" / "a.jpg", 0)
    with pytest.raises(InputError, match="class folder n09 is not in train/"):
        load_dataset(FOLDER, tree, "valid")
    shutil.rmtree(tree / "val")
    save(tree / "val" / "ILSVRC2012_val_1.JPEG", 0)
    with pytest.raises(InputError, match="pictures/val: no class folders in it"):
        load_dataset(FOLDER, tree, "valid")
    with pytest.raises(InputError, match="no folder train/ in it"):
        load_dataset(FOLDER, tree / "val", "train")
    with pytest.raises(InputError, match="not a folder"):
        load_dataset(FOLDER, tree / "LOC_synset_mapping.txt", "train")
    (tmp_path / "bare" / "train" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match="too few pictures for the train part"):
        load_dataset(FOLDER, tmp_path / "bare", "train")


def test_folder_with_a_broken_picture_names_it(tree):
    (tree / "train" / "n02" / "n02_04.JPEG").write_bytes(b"\xff\xd8\xff cut")
    images = load_dataset(FOLDER, tree, "train").images
    with pytest.raises(InputError, match=r"in n02: n02_04\.JPEG: .*, or remove the file"):
        images[:]


# Text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".txt", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_single_text_is_cut_90_5_5(tmp_path, suffix, pack):
    content = ("é" * 500).encode()
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(pack(content))
    parts = [load_dataset(TEXT, path, split) for split in SPLITS]
    assert [len(data.bytes) for data in parts] == [900, 50, 50]
    assert b"".join(bytes(data.bytes) for data in parts) == content
    assert parts[1].parts == {path.name: (0, 50)}
    assert not parts[0].bytes.flags.writeable


def test_single_text_is_never_cut_inside_a_character(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("a" + "😀" * 101, "utf-8")
    parts = [bytes(load_dataset(TEXT, path, split).bytes) for split in SPLITS]
    assert "".join(part.decode() for part in parts) == path.read_text("utf-8")


def test_zip_of_one_text(tmp_path):
    path = tmp_path / "text8.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", "anarchism " * 100)
    assert len(load_dataset(TEXT, path, "train").bytes) == 900


def test_folder_of_texts(tmp_path):
    for split in SPLITS:
        (tmp_path / f"b.{split}.txt").write_text(f"second {split}")
        (tmp_path / f"a.{split}.txt.xz").write_bytes(lzma.compress(f"first {split}".encode()))
    (tmp_path / "README.txt").write_text("not a part")
    data = load_dataset(TEXT, tmp_path, "valid")
    assert bytes(data.bytes) == b"first validsecond valid"
    assert data.parts == {"a": (0, 11), "b": (11, 23)}
    assert data.source == f"The text files a, b of {tmp_path.name}."
    (tmp_path / "a.valid.txt").write_text("twice")
    with pytest.raises(InputError, match=r"both a\.valid\.txt and a\.valid\.txt\.xz; remove one"):
        load_dataset(TEXT, tmp_path, "valid")


def test_plain_names_and_known_licences(tmp_path):
    (tmp_path / "validation.txt").write_text("only one part")
    assert load_dataset(TEXT, tmp_path, "valid").parts == {"text": (0, 13)}
    (tmp_path / "sotu.test.txt").write_text("My fellow citizens")
    data = load_dataset(TEXT, tmp_path, "test")
    assert data.source == "English text: State of the Union addresses."
    assert data.licence == "State of the Union addresses: public domain."


def test_text_problems(tmp_path):
    with pytest.raises(InputError, match=r"no file NAME\.train\.txt; give a text file"):
        load_dataset(TEXT, tmp_path, "train")
    path = tmp_path / "short.txt"
    path.write_text("much too short to train on")
    with pytest.raises(InputError, match=r"the valid part has 1 bytes, fewer than seq_len=8"):
        load_dataset(TEXT, path, "valid")
    path.write_text("")
    with pytest.raises(InputError, match="the train part has 0 bytes"):
        load_dataset(TEXT, path, "train")
