"""A sentence from a user → the bytes that a model reads, each with a label that can be shown."""

from __future__ import annotations

import codecs
import hashlib
import unicodedata
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from damcha.errors import InputError


@dataclass(frozen=True, eq=False)
class Passage:
    """A text cut to a model's length."""

    tokens: NDArray[np.uint8]
    """[n] bytes of UTF-8, n ≤ seq_len, read-only."""
    text: str
    """The characters that the tokens spell."""
    labels: tuple[str, ...]
    """One label per byte: ``a``, ``␠``, ``⏎``; ``é¹`` and ``é²`` for the bytes of one character;
    ``0xE2`` where a character has no shape of its own."""
    notes: tuple[str, ...]
    """One sentence for each conversion."""
    digest: str
    """SHA-256 of the whole text's UTF-8 bytes, in hex."""
    name: str


def read_text(
    text: str | bytes, seq_len: int, *, name: str = "text", subwords: bool = False
) -> Passage:
    """Return the first ``seq_len`` bytes of a text, never half a character.

    Parameters
    ----------
    text
        What was typed, or the bytes of a text file (UTF-8, or UTF-16 with its mark).
    seq_len
        The most bytes to keep.
    name
        What to call it in messages.
    subwords
        Whether a model reads it in subwords, so that a byte is no token.

    Raises
    ------
    InputError
        If the text is empty, blank, or not text.
    """
    notes: list[str] = []
    if isinstance(text, bytes | bytearray | memoryview):
        text = _decode(bytes(text), name, notes)
    elif not isinstance(text, str):
        raise InputError(f"a text cannot be read from a {type(text).__name__}; give a str")
    if not text:
        raise InputError(f"{name}: the text is empty; type a few words")
    if text.isspace():
        raise InputError(f"{name}: the text is blank, only spaces and line ends; type a few words")
    content = _encode(text, notes)
    kept = content[:seq_len]
    if len(content) > seq_len:
        # A cut inside a character would leave bytes that spell nothing. Unless it is the only one.
        kept = kept.decode("utf-8", "ignore").encode() or kept
        notes.append(f"Cut to the first {len(kept):,} of {len(content):,} bytes.")
    spelled = kept.decode("utf-8", "replace")
    if len(spelled) < len(kept) and not subwords:
        notes.append(f"{len(spelled):,} characters make {len(kept):,} bytes; each is a token.")
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in spelled):
        notes.append("Right-to-left text: its tokens run from left to right, first letter first.")
    tokens = np.frombuffer(kept, np.uint8)
    digest = hashlib.sha256(content).hexdigest()
    return Passage(tokens, spelled, _labels(spelled, kept), tuple(notes), digest, name)


def byte_label(byte: int) -> str:
    """Return the label of a single byte, e.g. of one that a model predicts."""
    if byte == 0x20:
        return "␠"
    if byte == 0x0A:
        return "⏎"
    if byte < 0x20:
        return chr(0x2400 + byte)  # Unicode's pictures of control characters
    if byte == 0x7F:
        return "␡"
    return chr(byte) if byte < 0x80 else f"0x{byte:02X}"


def symbol_label(spelled: bytes) -> str:
    """Return the label of a symbol that spells these bytes: ``␠the``, ``ä``, ``0xE2``."""
    try:
        characters = spelled.decode()
    except UnicodeDecodeError:
        return "".join(map(byte_label, spelled))
    return "".join(byte_label(ord(c)) if ord(c) < 0x80 else c for c in characters)


def _labels(spelled: str, kept: bytes) -> tuple[str, ...]:
    labels: list[str] = []
    for character in spelled:
        encoded = character.encode()
        if len(encoded) == 1 or unicodedata.category(character)[0] in "CMZ":
            labels += map(byte_label, encoded)
        else:
            labels += (character + place for place in "¹²³⁴"[: len(encoded)])
    if len(labels) != len(kept):  # seq_len is shorter than the first character
        return tuple(map(byte_label, kept))
    return tuple(labels)


def _encode(text: str, notes: list[str]) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Two halves that belong together become their character, a lone half becomes �.
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        n_lone = whole.count("\ufffd") - text.count("\ufffd")
        if n_lone:
            notes.append(
                f"{n_lone} lone surrogate{'s' * (n_lone > 1)} (half a character) replaced by �."
            )
        return whole.encode()


def _decode(content: bytes, name: str, notes: list[str]) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        notes.append("UTF-16 converted to UTF-8.")
        return content.decode("utf-16", "replace")
    content = content.removeprefix(codecs.BOM_UTF8)
    if b"\0" in content[:1024]:
        raise InputError(f"{name}: a binary file, not text; give a text file in UTF-8")
    text = content.decode("utf-8", "replace")
    n_wrong = text.count("\ufffd") - content.count("\ufffd".encode())
    if n_wrong:
        notes.append(f"{n_wrong:,} byte sequences that are not UTF-8 replaced by �.")
    return text
