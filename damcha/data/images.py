"""A picture from a user, whatever its file → upright 8-bit pixels, with a note of each conversion.

Size and kind are checked before anything is decoded. What a file is, its first bytes say; its
name decides nothing.
"""

from __future__ import annotations

import hashlib
import io
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, UnidentifiedImageError
from PIL.Image import Transpose

from damcha.errors import DamchaError, InputError

MAX_BYTES = 20_000_000
MAX_PIXELS = 20_000_000
MAX_SIDE = 32_767

ImageSource = str | Path | bytes | Image.Image | np.ndarray
Colour = tuple[int, int, int]

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
_ADVICE = "give a PNG, JPEG, GIF, WebP, BMP or TIFF picture"


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded picture."""

    pixels: NDArray[np.uint8]
    """[H, W, 3] or, where the source is grey, [H, W, 1]; upright, opaque, read-only."""
    notes: tuple[str, ...]
    """One sentence for each conversion on the way here."""
    digest: str
    """SHA-256 of the source's bytes, in hex."""
    name: str
    n_frames: int


def read_image(
    source: ImageSource,
    frame: int = 0,
    background: Colour = (255, 255, 255),
    *,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Picture:
    """Return the pixels of a file's path, its bytes, a PIL image or an array.

    Parameters
    ----------
    source
        Arrays are [H, W] or [H, W, 1 | 3 | 4]: bool, integers (scaled by their bit depth), or
        floats from 0 to 1.
    frame
        Which picture of an animation or of a TIFF with several pages, from 0.
    background
        What shows through transparent parts.
    name
        What to call it in messages; by default the file's name.

    Raises
    ------
    InputError
        If it is no picture, damaged or cut, empty, too large, or holds values with no meaning as
        pixels. Size is checked before decoding.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, background, name or "array", max_pixels)
    if isinstance(source, Image.Image):
        name = name or Path(getattr(source, "filename", "") or "image").name
        content = b""
    elif isinstance(source, bytes | bytearray | memoryview):
        name = name or "image"
        content = _checked_bytes(bytes(source), name)
    elif isinstance(source, str | Path):
        name = name or Path(source).name
        content = _checked_bytes(_read_file(Path(source), name), name)
    else:
        raise InputError(
            f"an image cannot be read from a {type(source).__name__}; "
            "give a path, bytes, a PIL image or a NumPy array"
        )
    try:
        if isinstance(source, Image.Image):
            return _from_pil(source, None, frame, background, name, max_pixels)
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return _from_pil(image, content, frame, background, name, max_pixels)
    except UnidentifiedImageError:
        raise InputError(f"{_shown(name)}: {_what_is(content)}; {_ADVICE}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(
            f"{_shown(name)}: far more than {max_pixels:,} pixels; make it smaller first"
        ) from None
    except DamchaError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything inside its decoder
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise InputError(
            f"{_shown(name)}: truncated or damaged ({reason}); save it again or give another"
        ) from None


def fit_image(
    picture: Picture, size: int, channels: Literal[1, 3], *, invert: bool = False
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Cut a picture to what a model takes: its central square, resized, with its channels.

    Parameters
    ----------
    picture
        Any picture.
    size
        Side of the result in pixels.
    channels
        1 for grey (ITU-R 601 luma), 3 for colour.
    invert
        Exchange light and dark, for a model that knows light objects on black. Never guessed.

    Returns
    -------
    pixels
        [size, size, channels], read-only.
    notes
        One sentence for each conversion.
    """
    notes = []
    pixels = picture.pixels
    height, width = pixels.shape[:2]
    side = min(height, width)
    if height != width:
        top, left = (height - side) // 2, (width - side) // 2
        pixels = pixels[top : top + side, left : left + side]
        notes.append(f"Cropped to the central {side}×{side} of {width}×{height} pixels.")
    image = _to_pil(pixels)
    if channels == 1 and image.mode == "RGB":
        image = image.convert("L")
        notes.append("Colour converted to grey: the model has one channel.")
    if side != size:
        verb = "Reduced" if side > size else "Enlarged"
        image = image.resize((size, size), Image.Resampling.LANCZOS)
        notes.append(f"{verb} from {side}×{side} to {size}×{size} pixels.")
    if channels == 3 and image.mode == "L":
        image = image.convert("RGB")
        notes.append("Grey repeated over three channels: the model takes colour.")
    fitted = np.array(image, np.uint8).reshape(size, size, channels)
    if invert:
        fitted = 255 - fitted
        notes.append("Inverted: light and dark exchanged.")
    fitted.setflags(write=False)
    return fitted, tuple(notes)


# From a file or an open image --------------------------------------------------------------------


def _read_file(path: Path, name: str) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a FIFO would hang; a folder is no picture
            raise InputError(f"{_shown(name)}: not a regular file; {_ADVICE}")
        if status.st_size > MAX_BYTES:
            raise _too_many_bytes(name, status.st_size)
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{_shown(name)}: no such file; {_ADVICE}") from None
    except OSError as error:
        raise InputError(
            f"{_shown(name)}: cannot be read ({error.strerror}); check its name and rights"
        ) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{_shown(name)}: not the name of a file ({error})") from None


def _checked_bytes(content: bytes, name: str) -> bytes:
    if not content:
        raise InputError(f"{_shown(name)}: empty (0 bytes); {_ADVICE}")
    if len(content) > MAX_BYTES:
        raise _too_many_bytes(name, len(content))
    return content


def _from_pil(
    image: Image.Image,
    content: bytes | None,
    frame: int,
    background: Colour,
    name: str,
    max_pixels: int,
) -> Picture:
    _check_size(name, image.width, image.height, max_pixels)
    notes = []
    n_frames = getattr(image, "n_frames", 1)
    if not 0 <= frame < n_frames:
        raise InputError(
            f"{_shown(name)}: no frame {frame}; it has {n_frames}, counted from 0 to {n_frames - 1}"
        )
    if n_frames > 1:
        image.seek(frame)
        _check_size(name, image.width, image.height, max_pixels)  # a frame may enlarge a GIF
        notes.append(f"Frame {frame + 1} of {n_frames} shown.")
    orientation = _orientation(image)
    image.load()
    deep = _deep_colour(image, content)
    still = _orientation(image)  # of a TIFF, Pillow has done it while decoding
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image, conversion = _shallow(image, name)
        notes += conversion
    elif deep:
        notes.append("16-bit colour scaled to 8 bits.")
    if orientation:
        sentence, method = _UPRIGHT[orientation]
        if still:
            image = image.transpose(method)
        notes.append(f"{sentence}, as its EXIF orientation ({orientation}) asks.")
    pixels, conversion = _opaque(image, background, name)
    digest = _digest(pixels) if content is None else hashlib.sha256(content).hexdigest()
    return Picture(_frozen(pixels), (*notes, *conversion), digest, name, n_frames)


_UPRIGHT = {
    2: ("Mirrored left to right", Transpose.FLIP_LEFT_RIGHT),
    3: ("Turned by 180°", Transpose.ROTATE_180),
    4: ("Mirrored top to bottom", Transpose.FLIP_TOP_BOTTOM),
    5: ("Mirrored along its main diagonal", Transpose.TRANSPOSE),
    6: ("Turned by 90° clockwise", Transpose.ROTATE_270),
    7: ("Mirrored along its other diagonal", Transpose.TRANSVERSE),
    8: ("Turned by 90° anticlockwise", Transpose.ROTATE_90),
}
"""EXIF orientation → what makes the picture upright (Pillow's angles are anticlockwise)."""


def _orientation(image: Image.Image) -> int | None:
    try:
        value = image.getexif().get(0x0112)
    except Exception:  # damaged metadata beside sound pixels
        return None
    return value if value in _UPRIGHT else None


def _deep_colour(image: Image.Image, content: bytes | None) -> bool:
    """Whether a file has 16 bits a channel, of which Pillow keeps the upper 8."""
    if image.format == "PNG" and content:
        return content[24] == 16
    return image.format == "TIFF" and max(image.tag_v2.get(258, (8,))) == 16  # type: ignore[attr-defined]


def _shallow(image: Image.Image, name: str) -> tuple[Image.Image, list[str]]:
    """Scale a grey image of 12, 16 or 32 bits, or of floats, to 8 bits; keep its transparency."""
    values = np.asarray(image)
    bits = getattr(image, "tag_v2", {}).get(258, (16,))[0]
    if image.mode.startswith("I;16"):
        top = 2**bits - 1
        scaled, notes = _scale(values, top), [f"{bits}-bit grey scaled to 8 bits."]
    else:
        scaled, notes = _scale_by_values(values, name)
    grey = Image.fromarray(scaled)
    if isinstance(key := image.info.get("transparency"), int):
        grey.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    return grey, notes


def _opaque(
    image: Image.Image, background: Colour, name: str
) -> tuple[NDArray[np.uint8], list[str]]:
    """Convert any 8-bit mode to [H, W, 3] or, where it is grey, to [H, W, 1]."""
    mode, notes = image.mode, []
    grey = mode in ("1", "L", "LA", "La")
    if mode in ("P", "PA"):
        notes.append("Palette colours converted to RGB.")
    if image.has_transparency_data:
        rgba = image.convert("LA" if mode == "La" else "RGBA").convert("RGBA")
        lowest, _ = rgba.getchannel("A").getextrema()
        if lowest != 255:
            colour = _checked_colour(background)
            rgba = Image.alpha_composite(Image.new("RGBA", rgba.size, (*colour, 255)), rgba)
            notes.append(f"Transparent parts laid on {_NAMES.get(colour, f'RGB {colour}')}.")
            grey = grey and len(set(colour)) == 1
        image = rgba.convert("L" if grey else "RGB")
    elif mode == "1":
        image = image.convert("L")
    elif mode == "CMYK":
        image = _from_cmyk(image)
        notes.append("CMYK (printing) colours converted to RGB.")
    elif mode not in ("L", "RGB"):
        try:
            image = image.convert("RGB")
        except ValueError:
            raise InputError(
                f"{_shown(name)}: colours of kind {mode} cannot be shown; save it as RGB"
            ) from None
        if mode != "P":
            notes.append(f"{mode} colours converted to RGB.")
    return np.array(image).reshape(image.height, image.width, -1), notes


_NAMES = {(255, 255, 255): "white", (0, 0, 0): "black"}


def _checked_colour(colour: Colour) -> Colour:
    if len(colour) != 3 or not all(isinstance(v, int) and 0 <= v <= 255 for v in colour):
        raise InputError(f"background {colour}: not a colour; give three integers from 0 to 255")
    return colour


def _from_cmyk(image: Image.Image) -> Image.Image:
    profile = image.info.get("icc_profile")
    if profile:
        try:  # the inks' own profile gives the colours that were meant
            inks = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            srgb = ImageCms.createProfile("sRGB")
            converted = ImageCms.profileToProfile(image, inks, srgb, outputMode="RGB")
            if converted is not None:
                return converted
        except (ImageCms.PyCMSError, OSError):
            pass
    return image.convert("RGB")


# From an array ----------------------------------------------------------------------------------


def _from_array(array: np.ndarray, background: Colour, name: str, max_pixels: int) -> Picture:
    shape = array.shape
    if len(shape) == 2:
        array = array[..., None]
    elif len(shape) != 3 or shape[2] not in (1, 3, 4):
        raise InputError(
            f"{_shown(name)}: an array of shape {shape}; give [H, W], [H, W, 1], [H, W, 3] or "
            "[H, W, 4], channels last"
        )
    _check_size(name, array.shape[1], array.shape[0], max_pixels)
    digest = _digest(array)
    values, notes = _scale_by_values(array, name)
    pixels, conversions = _opaque(_to_pil(values), background, name)
    return Picture(_frozen(pixels), (*notes, *conversions), digest, name, 1)


def _scale_by_values(values: np.ndarray, name: str) -> tuple[NDArray[np.uint8], list[str]]:
    """Bring numbers to 0 … 255 by their type; where that leaves it open, by their range."""
    if values.dtype == np.uint8:
        return values, []
    if values.dtype == np.bool_:
        return _scale(values, 1), ["True and false shown as white and black."]
    if values.dtype.kind not in "iuf":
        raise InputError(
            f"{_shown(name)}: values of type {values.dtype}; give integers, floats or bool"
        )
    if not np.isfinite(values).all():
        raise InputError(
            f"{_shown(name)}: it has NaN or infinite values; replace them, e.g. by np.nan_to_num"
        )
    low, high = values.min().item(), values.max().item()
    is_float = values.dtype.kind == "f"
    if low < 0 or (is_float and high > 255):
        raise InputError(
            f"{_shown(name)}: values from {low:g} to {high:g}; "
            + ("scale floats to 0 … 1" if is_float else "pixels cannot be negative")
        )
    if is_float:
        top = 1 if high <= 1 else 255
        return _scale(values, top), [f"Float values from 0 to {top} scaled to 8 bits."]
    # uint16 says how deep it is. Wider types mostly hold 8- or 16-bit values.
    depths = (16,) if values.dtype == np.uint16 else (8, 16, 31, 32, 64)
    bits = next(bits for bits in depths if high < 2**bits)
    if bits == 8:
        return values.astype(np.uint8), []
    return _scale(values, 2**bits - 1), [f"{bits}-bit integers scaled to 8 bits."]


def _scale(values: np.ndarray, top: int) -> NDArray[np.uint8]:
    scaled: NDArray[np.float32] = np.rint(values.astype(np.float32) * np.float32(255 / top))
    return scaled.astype(np.uint8)


# Shared -----------------------------------------------------------------------------------------


def _check_size(name: str, width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise InputError(f"{_shown(name)}: {width}×{height} pixels, so there is nothing to see")
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        raise InputError(
            f"{_shown(name)}: {width}×{height} pixels, more than {max_pixels:,} in all or "
            f"{MAX_SIDE:,} a side; make it smaller first"
        )


def _too_many_bytes(name: str, n_bytes: int) -> InputError:
    return InputError(
        f"{_shown(name)}: {n_bytes:,} bytes, more than {MAX_BYTES:,}; make it smaller first"
    )


_KINDS = (
    (b"\x89PNG", "a PNG picture, but truncated or damaged"),
    (b"\xff\xd8\xff", "a JPEG picture, but truncated or damaged"),
    (b"GIF8", "a GIF picture, but truncated or damaged"),
    (b"RIFF", "a WebP picture or another RIFF file, truncated or damaged"),
    (b"II*\0", "a TIFF picture, but truncated or damaged"),
    (b"MM\0*", "a TIFF picture, but truncated or damaged"),
    (b"MZ", "a program, not a picture"),
    (b"\x7fELF", "a program, not a picture"),
    (b"#!", "a program, not a picture"),
    (b"%PDF", "a PDF document, not a picture"),
    (b"PK\x03\x04", "a zip archive or office document, not a picture"),
    (b"version https://git-lfs", "a Git LFS pointer, not the picture itself: fetch it first"),
)
"""First bytes → what a file is that Pillow does not open."""


def _what_is(content: bytes) -> str:
    for magic, kind in _KINDS:
        if content.startswith(magic):
            return kind
    if content[4:8] == b"ftyp":
        return "a HEIC, AVIF or video file, which is not read here"
    start = content[:1024].lower()
    if b"<svg" in start:
        return "an SVG drawing, which is text and not pixels"
    if b"<html" in start:
        return "a web page, not a picture"
    if b"\0" not in start:
        try:
            content[:1024].decode("utf-8", "strict")
            return "text, not a picture"
        except UnicodeDecodeError:
            pass
    return "not a picture that can be read"


def _shown(name: str) -> str:
    """Return a name fit for one line: names of uploads are not ours."""
    return "".join(c if c.isprintable() else "�" for c in name)[:80] or "image"


def _digest(array: np.ndarray) -> str:
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def _to_pil(pixels: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _frozen(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pixels.setflags(write=False)
    return pixels
