import codecs

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from damcha.data import byte_label, read_text
from damcha.errors import InputError


def test_ascii():
    passage = read_text("To be,\n\tor", 128)
    assert passage.tokens.dtype == np.uint8
    assert bytes(passage.tokens) == b"To be,\n\tor"
    assert passage.labels == ("T", "o", "␠", "b", "e", ",", "⏎", "␉", "o", "r")
    assert passage.notes == ()
    assert passage.text == "To be,\n\tor"
    assert len(passage.digest) == 64
    assert not passage.tokens.flags.writeable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty; type a few words"),
        (b"", "the text is empty"),
        (codecs.BOM_UTF8, "the text is empty"),
        ("  \n\t ", "the text is blank"),
        ("\u3000\u00a0", "the text is blank"),
        (None, "cannot be read from a NoneType; give a str"),
        (b"\x7fELF\0\0", "a binary file, not text"),
    ],
)
def test_nothing_to_read(text, message):
    with pytest.raises(InputError, match=message):
        read_text(text, 16)


def test_long_text_is_cut_and_said():
    passage = read_text("a" * 3_000_000, 128)
    assert len(passage.tokens) == 128
    assert passage.notes == ("Cut to the first 128 of 3,000,000 bytes.",)
    assert read_text("a" * 128, 128).notes == ()


def test_cut_never_splits_a_character():
    passage = read_text("ab😀", 5)
    assert bytes(passage.tokens) == b"ab"
    assert passage.notes == ("Cut to the first 2 of 6 bytes.",)
    alone = read_text("😀", 2)
    assert alone.labels == ("0xF0", "0x9F")


def test_emoji_and_accents_are_labelled_by_byte():
    passage = read_text("é😀", 16)
    assert passage.labels == ("é¹", "é²", "😀¹", "😀²", "😀³", "😀⁴")
    assert passage.notes == ("2 characters make 6 bytes; each is a token.",)
    assert read_text("é😀", 16, subwords=True).notes == ()


def test_marks_without_a_shape_are_labelled_in_hex():
    assert read_text("e\u0301", 16).labels == ("e", "0xCC", "0x81")
    assert read_text("x\u200b", 16).labels == ("x", "0xE2", "0x80", "0x8B")


def test_right_to_left_is_said():
    passage = read_text("שלום", 16)
    assert passage.labels[:2] == ("ש¹", "ש²")
    assert any(note.startswith("Right-to-left text") for note in passage.notes)


def test_lone_surrogates_are_replaced_and_said():
    passage = read_text("a\ud800b\udc00", 16)
    assert passage.text == "a�b�"
    assert "2 lone surrogates (half a character) replaced by �." in passage.notes
    assert "1 lone surrogate (half" in read_text("a\udfff", 16).notes[0]


def test_surrogates_that_belong_together_are_joined():
    passage = read_text("\ud83d\ude00 \ufffd", 16)
    assert passage.text == "😀 �"
    assert not any("surrogate" in note for note in passage.notes)


def test_files():
    assert read_text(codecs.BOM_UTF8 + b"abc", 16).text == "abc"
    utf16 = read_text("abc".encode("utf-16"), 16)
    assert utf16.text == "abc"
    assert utf16.notes == ("UTF-16 converted to UTF-8.",)
    latin1 = read_text("naïve café".encode("latin-1"), 32)
    assert latin1.text == "na�ve caf�"
    assert "2 byte sequences that are not UTF-8 replaced by �." in latin1.notes


def test_digest_covers_the_whole_text():
    assert read_text("abcdef", 3).digest != read_text("abcxyz", 3).digest


def test_every_byte_has_a_label():
    labels = [byte_label(byte) for byte in range(256)]
    assert len(set(labels)) == 256
    assert all(label.isprintable() and label.strip() for label in labels)
    assert (labels[0], labels[10], labels[32], labels[65], labels[127], labels[195]) == (
        "␀", "⏎", "␠", "A", "␡", "0xC3",
    )  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(st.characters(), min_size=1), st.integers(1, 40))
def test_any_text(text, seq_len):
    if text.isspace():
        return
    passage = read_text(text, seq_len)
    assert 1 <= len(passage.tokens) <= seq_len
    assert len(passage.labels) == len(passage.tokens)
    assert all(label.isprintable() and label for label in passage.labels)
