import os
import socket
import stat

import pytest

from damcha.checkpoint.files import atomic_write, read_text, regular_file
from damcha.errors import CheckpointError


def test_text_and_bytes_are_written_and_replaced(tmp_path):
    path = tmp_path / "x.json"
    atomic_write(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    atomic_write(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert os.listdir(tmp_path) == ["x.json"]


def test_others_may_read_what_was_written(tmp_path):
    before = os.umask(0o022)
    try:
        atomic_write(tmp_path / "x", "1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o644


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    atomic_write(tmp_path / "x", "old")

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        atomic_write(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_the_bytes_are_on_disk_before_the_name_moves(tmp_path, monkeypatch):
    # Otherwise a power cut leaves an empty file under the good name.
    steps = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("sync"), real_sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("move"), real_replace(a, b)))
    atomic_write(tmp_path / "x", "1")
    assert steps == ["sync", "move", "sync"]


def test_a_regular_file_is_accepted_also_through_a_linked_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_text("1")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "y").symlink_to("x")
    assert regular_file(tmp_path / "link" / "x", 10) == (tmp_path / "real" / "x").resolve()
    assert regular_file(tmp_path / "real" / "y", 10) == (tmp_path / "real" / "x").resolve()


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text("1")
    (tmp_path / "run" / "x").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=r"x is a link out of its folder, to .*secret"):
        regular_file(tmp_path / "run" / "x", 10)


def test_a_dangling_link_and_a_loop_are_refused(tmp_path):
    (tmp_path / "x").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="x is a link to nothing in"):
        regular_file(tmp_path / "x", 10)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match="'loop' cannot be opened"):
        regular_file(tmp_path / "loop", 10)


def test_a_missing_file_and_an_impossible_name_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="x is missing in"):
        regular_file(tmp_path / "x", 10)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        regular_file(tmp_path / "a\0b", 10)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        regular_file(tmp_path / ("a" * 300), 10)


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
def test_what_is_no_file_is_refused_without_being_opened(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the name of a socket is limited to about 100 characters
    if kind == "fifo":
        os.mkfifo("x")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
    else:
        os.mkdir("x")
    what = "a folder" if kind == "folder" else "a pipe, socket or device"
    with pytest.raises(CheckpointError, match=f"x is {what}, not a file"):
        regular_file(tmp_path / "x", 10)


def test_a_file_over_the_limit_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(bytes(1001))
    with pytest.raises(CheckpointError, match="x has 1,001 bytes, more than the 1,000 that"):
        regular_file(tmp_path / "x", 1000)


def test_a_bad_byte_in_a_text_is_shown(tmp_path):
    (tmp_path / "x").write_bytes(b"a\xffb")
    assert read_text(tmp_path / "x", 10) == "a\ufffdb"


def test_an_unreadable_text_is_named(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("1")

    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", denied)
    with pytest.raises(CheckpointError, match="x cannot be read: Permission denied"):
        read_text(tmp_path / "x", 10)
