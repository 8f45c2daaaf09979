import pytest

from app.boards import Collected
from damcha import gallery, open_run


@pytest.fixture
def board(opened, tiny_runs):
    """The board with two figures on it."""
    run = open_run(tiny_runs / "fashion-damcha")
    subject = gallery.open_subject(run, 10, run.samples[0], device="cpu")
    at = opened()
    figures = gallery.metric(subject), gallery.spectrum(subject)
    for k, figure in enumerate(figures):
        at.session_state["damcha"].board.append(Collected(figure, (), k + 1))
    at.switch_page("views/board.py").run()
    assert not at.exception
    return at


def press(at, label, index=0):
    [button for button in at.button if button.label == label][index].click().run()
    assert not at.exception
    return at


def titles(at):
    return [one.figure.title for one in at.session_state["damcha"].board]


def test_an_empty_board_says_what_to_do(opened):
    at = opened("board")
    assert any("Add to the figure board" in caption.value for caption in at.caption)


def test_order_names_and_removal(board):
    first, second = titles(board)
    press(board, "↓")
    assert titles(board) == [second, first]
    board.text_input[0].set_value("My spectrum").run()
    assert titles(board)[0] == "My spectrum"
    press(board, "✕", 1)
    assert titles(board) == ["My spectrum"]


def test_composition_joins_the_marked(board):
    for box in board.checkbox:
        if box.key.startswith("mark-"):
            box.check()
    board.run()
    press(board, "Compose the marked")
    assert len(titles(board)) == 3
    made = board.session_state["damcha"].board[-1].figure
    assert made.panels[0].title.startswith("(a)")


def test_the_zip(board):
    press(board, "Write the ZIP")
    assert not board.error
    download = next(d for d in board.get("download_button") if "figures.zip" in d.proto.label)
    assert download is not None
    assert any("regenerate.py" in caption.value for caption in board.caption)
