"""Boards on disk: what was collected outlives the tab, and damage costs one sentence."""

import json
import os
import time

import numpy as np
import pytest

from app import boards
from app.boards import Collected
from damcha import gallery, open_run
from damcha.checkpoint.files import atomic_write
from damcha.figures.stored import to_bytes


@pytest.fixture
def figures(tiny_runs):
    run = open_run(tiny_runs / "fashion-damcha")
    subject = gallery.open_subject(run, 10, run.samples[0], device="cpu")
    return gallery.metric(subject), gallery.spectrum(subject)


@pytest.fixture
def kept(opened, figures):
    """A board of two figures with their input in a tab, and its number."""
    at = opened()
    for k, figure in enumerate(figures):
        one = Collected(figure, (("../mine.png", b"an upload"),), k + 1)
        at.session_state["damcha"].board.append(one)
    at.switch_page("views/board.py").run()
    assert not at.exception
    return at, address(at)


def address(at):
    """The board's number in the address."""
    told = at.query_params["board"]  # a list where the test set it, text where the page did
    return told if isinstance(told, str) else told[0]


def words(at):
    return [(one.figure.title, one.figure.caption) for one in at.session_state["damcha"].board]


def notices(at):
    return " ".join(info.value for info in at.info).replace("\\", "")


def listed(number):
    return json.loads((boards.folder() / f"{number}.json").read_text())


def test_a_closed_tab_loses_nothing(kept, opened):
    at, number = kept
    collected = at.session_state["damcha"].board
    assert len(collected) == 2
    again = opened("board", board=number)
    assert words(again) == words(at)
    for one, other in zip(collected, again.session_state["damcha"].board, strict=True):
        assert other.inputs == one.inputs
        assert set(other.figure.arrays) == set(one.figure.arrays)
        for name, array in one.figure.arrays.items():
            np.testing.assert_array_equal(other.figure.arrays[name], array)


def test_looking_writes_nothing(kept, opened):
    _, number = kept
    before = sorted(path.name for path in boards.folder().rglob("*"))
    again = opened("board", board=number)
    assert address(again) == number
    assert sorted(path.name for path in boards.folder().rglob("*")) == before


def test_words_order_page_and_removal_are_kept(kept, opened):
    at, number = kept
    at.text_input(key="title-1").set_value("Mine").run()
    at.selectbox(key="column-board").set_value("double").run()
    at.button(key="down-1").click().run()
    again = opened("board", board=number)
    assert [title for title, _ in words(again)][1] == "Mine"
    assert again.session_state["damcha"].column == "double"
    at.button(key="remove-2").click().run()
    at.button(key="remove-1").click().run()
    assert listed(number)["figures"] == []


def test_who_has_the_link_changes_a_copy(kept, opened):
    at, number = kept
    other = opened("board", board=number)
    other.text_input(key="title-1").set_value("Theirs").run()
    copy = address(other)
    assert copy != number
    assert listed(copy)["figures"][0]["title"] == "Theirs"
    assert listed(number)["figures"][0]["title"] == words(at)[0][0] != "Theirs"
    assert listed(copy)["figures"][0]["file"] == listed(number)["figures"][0]["file"]


def test_a_damaged_figure_costs_itself_only(kept, opened):
    _, number = kept
    file = boards.folder() / "figures" / listed(number)["figures"][0]["file"]
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    again = opened("board", board=number)
    assert len(words(again)) == 1
    assert "Figure 1 of the board cannot be opened: its file is damaged." in notices(again)
    file.unlink()
    assert "Figure 1 of the board cannot be opened" in notices(opened("board", board=number))


@pytest.mark.parametrize(
    "number", ["../../etc/passwd", "0" * 32, "é" * 32, "A" * 32, "0" * 5000], ids=range(5)
)
def test_a_link_to_no_board(opened, number):
    at = opened("board", board=number)
    assert notices(at).count("The link's board cannot be opened") == 1
    assert not at.session_state["damcha"].board
    assert "board" not in at.query_params


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"figures": 3, "venue": [], "column": 0}',
        '{"venue": "icml", "column": "single", "figures": [{"inputs": [], "file": "../secret"}]}',
        '{"venue": "icml", "column": "single", "figures": [null]}',
    ],
    ids=range(6),
)
def test_a_list_that_is_none(opened, content):
    boards.folder().mkdir(parents=True)
    number = "a" * 32
    (boards.folder() / f"{number}.json").write_text(content)
    at = opened("board", board=number)
    assert "cannot be opened" in notices(at)


def test_a_file_that_says_it_is_a_figure_but_lies(kept, opened):
    _, number = kept
    content = listed(number)
    content["figures"][1]["file"] = content["figures"][0]["inputs"][0]["file"]  # a PNG
    (boards.folder() / f"{number}.json").write_text(json.dumps(content))
    assert "Figure 2 of the board cannot be opened" in notices(opened("board", board=number))


def test_a_folder_that_cannot_be_written(opened, figures, monkeypatch, tmp_path):
    at = opened()
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("DAMCHA_BOARDS", str(tmp_path / "file"))
    at.session_state["damcha"].board.append(Collected(figures[0], (), 1))
    at.switch_page("views/board.py").run()
    assert not at.exception
    assert len(at.session_state["damcha"].board) == 1
    assert any("last as long as this tab only" in caption.value for caption in at.caption)
    assert "board" not in at.query_params


def test_an_address_names_only_what_was_written(opened, figures, monkeypatch):
    def full(path, content):
        if path.suffix == ".json":
            raise OSError(28, "No space left on device")
        atomic_write(path, content)

    at = opened()
    monkeypatch.setattr("damcha.checkpoint.files.atomic_write", full)
    at.session_state["damcha"].board.append(Collected(figures[0], (), 1))
    at.switch_page("views/board.py").run()
    assert any("No space left on device" in caption.value for caption in at.caption)
    assert "board" not in at.switch_page("views/inspect.py").run().query_params


def test_old_boards_make_room(kept, monkeypatch):
    _, number = kept
    home = boards.folder()
    old = time.time() - 10 * boards.SPARED
    orphan = home / "figures" / ("b" * 64)
    orphan.write_bytes(b"named by no board")
    fresh = home / "figures" / ("c" * 64)
    fresh.write_bytes(b"about to be named")
    for path in (orphan, home / f"{number}.json"):
        os.utime(path, (old, old))
    boards._prune(home)
    assert not orphan.exists() and fresh.exists()
    assert all((home / "figures" / one["file"]).exists() for one in listed(number)["figures"])
    (home / f"{'d' * 32}.json").write_text("{}")
    monkeypatch.setattr(boards, "MOST_BOARDS", 1)
    boards._prune(home)
    assert [path.stem for path in home.glob("*.json")] == ["d" * 32]


def test_all_boards_together_are_bounded(kept, monkeypatch):
    at, number = kept
    size = sum(len(to_bytes(one.figure)) for one in at.session_state["damcha"].board)
    monkeypatch.setattr(boards, "MOST_BYTES", size // 2)
    boards._prune(boards.folder())
    assert not (boards.folder() / f"{number}.json").exists()
