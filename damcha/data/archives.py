"""Files of data sets, packed or not, read whole into memory within a fixed bound.

Nothing is ever extracted to disk, so a member's name cannot lead out of a folder, and a file that
unpacks to more than MAX_BYTES is refused while it unpacks, whatever its header promises.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from damcha.errors import InputError

MAX_BYTES = 512 * 2**20
"""The most that a packed file may unpack to; CIFAR-10 needs 184 MB, enwik8 100 MB."""

_OPENERS: dict[bytes, Callable[[io.BytesIO], io.BufferedIOBase]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
    b"PK\x03\x04": lambda file: _only_member(file),
}
"""First bytes of a packed file → how to read it. The name of a file decides nothing."""


def is_packed(path: Path) -> bool:
    """Whether a file is gzip, xz, bzip2 or zip, by its first bytes."""
    with path.open("rb") as file:
        return _opener(file.read(6)) is not None


def unpack(*parts: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzip, xz, bzip2 or a zip of one file.

    Parameters
    ----------
    *parts
        The file, or the consecutive pieces it is stored in.

    Raises
    ------
    InputError
        If it cannot be read, is damaged or cut, or is larger than MAX_BYTES once unpacked.
    """
    name = parts[0].name
    try:
        if sum(part.stat().st_size for part in parts) > MAX_BYTES:
            raise InputError(f"{name}: larger than {MAX_BYTES // 2**20} MB; give a smaller file")
        packed = b"".join(part.read_bytes() for part in parts)
        opener = _opener(packed)
        if opener is None:
            return packed
        with opener(io.BytesIO(packed)) as file:
            return _bounded(file, name)
    except EOFError:
        raise InputError(f"{name}: cut off before its end; download it again") from None
    except (lzma.LZMAError, zlib.error, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        raise InputError(f"{name}: damaged ({error}); download it again") from None
    except RuntimeError:  # zipfile says so of a member with a password
        raise InputError(f"{name}: encrypted; unpack it yourself first") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror or error})") from None


def read_tar(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the wanted files of a tar archive, packed or not, by their names without folders.

    Raises
    ------
    InputError
        If the archive is damaged, cut, or too large. A file it lacks is not in the answer.
    """
    wanted = set(names)
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(unpack(path)), mode="r:") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if name in wanted and member.isreg():
                    file = tar.extractfile(member)
                    found[name] = file.read() if file else b""
                    if len(found[name]) != member.size:
                        raise InputError(f"{path.name}: cut inside {name}; download it again")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path.name}: not a tar archive, or damaged ({error})") from None
    return found


def _opener(start: bytes) -> Callable[[io.BytesIO], io.BufferedIOBase] | None:
    return next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)


def _bounded(file: io.BufferedIOBase, name: str) -> bytes:
    content = bytearray()
    while chunk := file.read(2**20):
        content += chunk
        if len(content) > MAX_BYTES:
            raise InputError(
                f"{name}: unpacks to more than {MAX_BYTES // 2**20} MB; "
                "check the file, or unpack it yourself first"
            )
    return bytes(content)


def _only_member(file: io.BytesIO) -> io.BufferedIOBase:
    archive = zipfile.ZipFile(file)
    members = [info for info in archive.infolist() if not info.is_dir()]
    if len(members) != 1:
        raise InputError(
            f"a zip of {len(members)} files, where one was expected; unpack it yourself first"
        )
    return archive.open(members[0])  # type: ignore[return-value]
