import io
import os
import random

import numpy as np
import pytest
from PIL import Image

from damcha.data import fit_image, read_image
from damcha.errors import InputError

RED, GREEN, BLUE, WHITE, BLACK = (
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0),
)  # fmt: skip


def encode(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def photo(width=48, height=32, seed=0):
    """Smooth colours, so that JPEG changes them little."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def corners(image):
    """Colours of the four corners of a 32×48 picture in four flat parts, as rough names."""
    pixels = image.pixels.astype(int)
    near = {"r": RED, "g": GREEN, "b": BLUE, "w": WHITE}
    found = ""
    for row, column in ((4, 4), (4, -5), (-5, 4), (-5, -5)):
        colour = pixels[row, column]
        found += min(near, key=lambda name: np.abs(colour - near[name]).sum())
    return found


@pytest.fixture
def quadrants():
    image = Image.new("RGB", (48, 32), WHITE)
    image.paste(RED, (0, 0, 24, 16))
    image.paste(GREEN, (24, 0, 48, 16))
    image.paste(BLUE, (0, 16, 24, 32))
    return image


# EXIF -------------------------------------------------------------------------------------------

# What a picture whose corners read r g / b w looks like once turned upright.
UPRIGHT = {
    1: "rgbw", 2: "grwb", 3: "wbgr", 4: "bwrg", 5: "rbgw", 6: "brwg", 7: "wgbr", 8: "gwrb",
}  # fmt: skip


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation_is_undone_and_said(quadrants, format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = read_image(encode(quadrants, format, exif=exif))
    assert corners(picture) == UPRIGHT[orientation]
    assert picture.pixels.shape == ((48, 32, 3) if orientation >= 5 else (32, 48, 3))
    said = [note for note in picture.notes if f"EXIF orientation ({orientation})" in note]
    assert len(said) == (orientation != 1)


def test_damaged_exif_does_not_hide_the_picture(quadrants):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encode(quadrants, "JPEG", exif=exif)
    content = content.replace(b"MM\0*\0\0\0\x08", b"XX\0*\0\0\0\x08").replace(b"II*\0", b"XX*\0")
    assert corners(read_image(content)) == "rgbw"


# Depth ------------------------------------------------------------------------------------------

GRADIENT = np.linspace(0, 65535, 16 * 64).astype(np.uint16).reshape(16, 64)


@pytest.mark.parametrize(
    "source",
    [
        encode(Image.fromarray(GRADIENT), "PNG"),
        encode(Image.fromarray(GRADIENT), "TIFF"),
        Image.frombytes("I;16B", (64, 16), GRADIENT.astype(">u2").tobytes()),
        Image.fromarray(GRADIENT.astype(np.int32)),
        encode(Image.fromarray(GRADIENT.astype(np.int32)), "TIFF"),
        GRADIENT,
        GRADIENT.astype(np.int32),
        GRADIENT.astype(np.int64)[..., None],
        GRADIENT.astype(np.int32) * 32767,
    ],
    ids=["png", "tiff", "big-endian", "pil-i", "tiff-i", "uint16", "int32", "int64", "deep-int32"],
)
def test_deep_grey_is_scaled_by_its_depth(source):
    picture = read_image(source)
    expected = np.rint(GRADIENT / 65535 * 255)
    assert picture.pixels.shape == (16, 64, 1)
    assert np.abs(picture.pixels[..., 0] - expected).max() <= 1
    assert any("scaled to 8 bits" in note for note in picture.notes)


def test_sixteen_bit_colour_is_said():
    from struct import pack
    from zlib import compress, crc32

    def chunk(kind, body):
        return pack(">I", len(body)) + kind + body + pack(">I", crc32(kind + body))

    row = b"\0" + pack(">3H", 65535, 32768, 0) * 2
    content = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0))
        + chunk(b"IDAT", compress(row))
        + chunk(b"IEND", b"")
    )
    picture = read_image(content)
    assert picture.pixels[0, 0].tolist() == [255, 128, 0]
    assert picture.notes == ("16-bit colour scaled to 8 bits.",)


def test_transparent_key_of_sixteen_bit_grey():
    picture = read_image(encode(Image.fromarray(GRADIENT), "PNG", transparency=0))
    assert picture.pixels[0, 0] == 255
    assert "Transparent parts laid on white." in picture.notes


def test_bilevel_is_black_and_white():
    picture = read_image(encode(Image.new("1", (4, 4), 1), "PNG"))
    assert picture.pixels.shape == (4, 4, 1)
    assert set(picture.pixels.flat) == {255}


# Colour and alpha -------------------------------------------------------------------------------


def test_cmyk_jpeg_keeps_its_colours_and_says_so(quadrants):
    picture = read_image(encode(quadrants.convert("CMYK"), "JPEG", quality=95))
    assert corners(picture) == "rgbw"
    assert picture.notes == ("CMYK (printing) colours converted to RGB.",)


def test_cmyk_with_a_broken_profile(quadrants):
    content = encode(quadrants.convert("CMYK"), "JPEG", icc_profile=b"no profile at all")
    assert corners(read_image(content)) == "rgbw"


@pytest.mark.parametrize("mode", ["YCbCr", "LAB", "HSV"])
def test_other_colour_spaces_are_converted(quadrants, mode):
    if mode == "LAB":
        from PIL import ImageCms

        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image = ImageCms.profileToProfile(quadrants, srgb, lab, outputMode="LAB")
    else:
        image = quadrants.convert(mode)
    picture = read_image(image)
    assert corners(picture) == "rgbw"
    assert picture.notes == (f"{mode} colours converted to RGB.",)


def test_hidden_colours_under_alpha_do_not_come_back():
    image = Image.new("RGBA", (4, 4), (*RED, 0))
    white, black = read_image(encode(image, "PNG")), read_image(image, background=BLACK)
    assert set(white.pixels.flat) == {255}
    assert set(black.pixels.flat) == {0}
    assert white.notes == ("Transparent parts laid on white.",)
    assert black.notes == ("Transparent parts laid on black.",)
    odd = read_image(image, background=(1, 2, 3))
    assert odd.pixels[0, 0].tolist() == [1, 2, 3]
    assert odd.notes == ("Transparent parts laid on RGB (1, 2, 3).",)


def test_half_transparent_is_mixed():
    image = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert abs(int(read_image(image).pixels[0, 0, 0]) - 127) <= 1


def test_opaque_alpha_is_not_mentioned():
    picture = read_image(encode(Image.new("RGBA", (2, 2), (*GREEN, 255)), "PNG"))
    assert picture.notes == ()
    assert picture.pixels[0, 0].tolist() == [*GREEN]


@pytest.mark.parametrize("transparency", [0, bytes([0, 255])])
def test_palette_with_transparency(transparency):
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *GREEN])
    image.putpixel((1, 0), 1)
    picture = read_image(encode(image, "PNG", transparency=transparency))
    assert picture.pixels[0].tolist() == [[*WHITE], [*GREEN]]
    assert picture.notes == (
        "Palette colours converted to RGB.",
        "Transparent parts laid on white.",
    )


def test_grey_with_alpha_stays_grey_on_grey():
    image = Image.new("LA", (2, 2), (10, 0))
    assert read_image(image).pixels.shape == (2, 2, 1)
    assert read_image(image, background=RED).pixels.shape == (2, 2, 3)


@pytest.mark.parametrize("background", [(256, 0, 0), (0.5, 0, 0), (0, 0)])
def test_background_must_be_a_colour(background):
    with pytest.raises(InputError, match=r"not a colour; give three integers"):
        read_image(Image.new("RGBA", (1, 1)), background=background)


# Frames -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["GIF", "TIFF", "WEBP", "PNG"])
def test_frame_is_said_and_can_be_chosen(format):
    first, second = Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), BLUE)
    options = {"lossless": True} if format == "WEBP" else {}
    content = encode(first, format, save_all=True, append_images=[second], **options)
    for frame, colour in enumerate((RED, BLUE)):
        picture = read_image(content, frame=frame)
        assert picture.n_frames == 2
        assert picture.pixels[4, 4].tolist() == [*colour]
        assert f"Frame {frame + 1} of 2 shown." in picture.notes
    for frame in (2, -1):
        with pytest.raises(InputError, match=rf"no frame {frame}; it has 2, counted from 0 to 1"):
            read_image(content, frame=frame)


def test_single_picture_has_one_frame():
    assert read_image(Image.new("L", (2, 2))).n_frames == 1


# Sources ----------------------------------------------------------------------------------------


def test_path_bytes_pil_and_array_agree(tmp_path):
    image = photo()
    path = tmp_path / "photo.png"
    image.save(path)
    content = path.read_bytes()
    pictures = [
        read_image(source)
        for source in (path, str(path), content, Image.open(path), np.asarray(image))
    ]
    for picture in pictures:
        assert np.array_equal(picture.pixels, np.asarray(image))
        assert not picture.pixels.flags.writeable
    assert [picture.name for picture in pictures] == [
        "photo.png", "photo.png", "image", "photo.png", "array",
    ]  # fmt: skip
    assert pictures[0].digest == pictures[1].digest == pictures[2].digest
    assert len({len(picture.digest) for picture in pictures}) == 1
    assert read_image(content, name="upload.png").name == "upload.png"


def test_digests_differ_where_pixels_do():
    a, b = Image.new("P", (2, 2)), Image.new("P", (2, 2))
    a.putpalette([*RED]), b.putpalette([*BLUE])
    assert read_image(a).digest != read_image(b).digest
    flat, tall = np.zeros((1, 4), np.uint8), np.zeros((4, 1), np.uint8)
    assert read_image(flat).digest != read_image(tall).digest


def test_users_array_stays_writable_and_apart():
    array = np.zeros((4, 4, 3), np.uint8)
    picture = read_image(array)
    array[:] = 255
    assert picture.pixels.max() == 0


@pytest.mark.parametrize(
    ("array", "brightest", "note"),
    [
        (np.array([[0.0, 1.0]]), 255, "Float values from 0 to 1"),
        (np.array([[0.0, 0.5]], np.float16), 128, "Float values from 0 to 1"),
        (np.array([[0.0, 200.0]]), 200, "Float values from 0 to 255"),
        (np.array([[False, True]]), 255, "True and false"),
        (np.array([[0, 200]], np.int64), 200, None),
        (np.array([[0, 2**63]], np.uint64), 128, "64-bit integers"),
    ],
)
def test_arrays_are_scaled(array, brightest, note):
    picture = read_image(array)
    assert picture.pixels.max() == brightest
    assert picture.notes == () if note is None else picture.notes[0].startswith(note)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((0, 3)), "3×0 pixels, so there is nothing to see"),
        (np.zeros((3, 8, 8)), "shape .*channels last"),
        (np.zeros(3), "shape"),
        (np.array([[np.nan]]), "NaN or infinite"),
        (np.array([[np.inf]]), "NaN or infinite"),
        (np.array([[-1.0, 1.0]]), "values from -1 to 1; scale floats"),
        (np.array([[300.0]]), "values from 300 to 300; scale floats"),
        (np.array([[-1, 1]]), "pixels cannot be negative"),
        (np.array([[1j]]), "type complex128"),
        (np.array([["a"]]), "give integers, floats or bool"),
        (np.array([[None]]), "type object"),
        (np.zeros((5000, 5000), np.uint8), "5000×5000 pixels, more than 20,000,000"),
    ],
)
def test_arrays_that_are_no_pictures(array, message):
    with pytest.raises(InputError, match=message):
        read_image(array)


def test_other_types_are_refused():
    with pytest.raises(InputError, match="cannot be read from a NoneType; give a path"):
        read_image(None)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(InputError, match=r"gone\.png: no such file"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(InputError, match="not a regular file"):
        read_image(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match=r"pipe\.png: not a regular file"):
        read_image(tmp_path / "pipe.png")
    with pytest.raises(InputError, match="cannot be read"):
        read_image("x" * 5000)
    with pytest.raises(InputError, match="not the name of a file"):
        read_image("a\0b")


def test_file_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(20_000_001)
    with pytest.raises(InputError, match="20,000,001 bytes, more than 20,000,000"):
        read_image(path)
    with pytest.raises(InputError, match="more than 20,000,000"):
        read_image(path.read_bytes())


# Files that are not what they say ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        (b"MZ\x90\0" + bytes(200), "a program, not a picture"),
        (b"\x7fELF" + bytes(200), "a program, not a picture"),
        (b"#!/bin/sh\necho", "a program, not a picture"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"PK\x03\x04" + bytes(50), "a zip archive"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (bytes(4) + b"ftypheic" + bytes(50), "a HEIC, AVIF or video file"),
        ("Grüße".encode(), "text, not a picture"),
        (bytes(range(256)), "not a picture that can be read"),
        (b"\xff\xd8\xff", "a JPEG picture, but truncated"),
        (b"\x89PNG\r\n", "a PNG picture, but truncated"),
    ],
)
def test_content_decides_and_not_the_name(tmp_path, content, message):
    path = tmp_path / "holiday.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"holiday\.png: {message}") as caught:
        read_image(path)
    assert "\n" not in str(caught.value)


def test_jpeg_named_png_is_read(tmp_path):
    path = tmp_path / "photo.png"
    photo().save(path, "JPEG")
    assert read_image(path).pixels.shape == (32, 48, 3)


def test_names_fit_one_line():
    with pytest.raises(InputError, match=r"^a�b: empty"):
        read_image(b"", name="a\nb")


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_cut_files_are_refused(format, share):
    content = encode(photo(200, 200), format)
    with pytest.raises(InputError, match="truncated or damaged"):
        read_image(content[: int(len(content) * share)])


def test_damage_never_gives_another_error():
    chance = random.Random(0)
    seeds = [encode(photo(), format) for format in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")]
    for _ in range(600):
        content = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 3, 10))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            picture = read_image(bytes(content))
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert picture.pixels.ndim == 3


# Sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [5000, 12000, 20000])
def test_decompression_bombs_are_refused_before_decoding(side):
    content = encode(Image.new("1", (side, side)), "PNG")
    assert len(content) < 100_000
    with pytest.raises(InputError, match=r"more than 20,000,000"):
        read_image(content)


def test_limit_of_pixels_can_be_raised_but_a_side_is_bounded():
    content = encode(Image.new("1", (5000, 5000)), "PNG")
    assert read_image(content, max_pixels=30_000_000).pixels.shape == (5000, 5000, 1)
    with pytest.raises(InputError, match="32,767 a side"):
        read_image(encode(Image.new("1", (40000, 1)), "PNG"))


@pytest.mark.parametrize("size", [(1, 1), (20000, 1), (1, 20000)])
def test_extreme_shapes_become_their_central_square(size):
    picture = read_image(encode(Image.new("RGB", size, (9, 8, 7)), "PNG"))
    fitted, notes = fit_image(picture, 28, 3)
    assert np.array_equal(fitted, np.broadcast_to(np.uint8([9, 8, 7]), (28, 28, 3)))
    assert "Enlarged from 1×1 to 28×28 pixels." in notes
    assert (f"Cropped to the central 1×1 of {size[0]}×{size[1]} pixels." in notes) == (
        size != (1, 1)
    )


# Fitting ----------------------------------------------------------------------------------------


def test_right_size_and_channels_pass_untouched():
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 1), dtype=np.uint8)
    fitted, notes = fit_image(read_image(pixels), 28, 1)
    assert np.array_equal(fitted, pixels)
    assert notes == ()
    assert not fitted.flags.writeable


def test_colour_becomes_grey_and_grey_becomes_colour():
    grey, notes = fit_image(read_image(Image.new("RGB", (8, 8), GREEN)), 8, 1)
    assert grey.shape == (8, 8, 1)
    assert grey[0, 0, 0] == round(0.587 * 255)
    assert notes == ("Colour converted to grey: the model has one channel.",)
    colour, notes = fit_image(read_image(Image.new("L", (8, 8), 77)), 8, 3)
    assert colour.shape == (8, 8, 3)
    assert set(colour.flat) == {77}
    assert notes == ("Grey repeated over three channels: the model takes colour.",)


def test_crop_is_central():
    image = Image.new("L", (12, 4), 0)
    image.paste(200, (4, 0, 8, 4))
    fitted, notes = fit_image(read_image(image), 4, 1)
    assert set(fitted.flat) == {200}
    assert notes == ("Cropped to the central 4×4 of 12×4 pixels.",)


def test_reduction_averages_instead_of_skipping():
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    fitted, notes = fit_image(read_image(stripes), 8, 1)
    assert np.abs(fitted.astype(int) - 127).max() < 12
    assert notes == ("Reduced from 64×64 to 8×8 pixels.",)


def test_inversion_only_on_request():
    picture = read_image(np.full((4, 4), 250, np.uint8))
    assert fit_image(picture, 4, 1)[0][0, 0] == 250
    inverted, notes = fit_image(picture, 4, 1, invert=True)
    assert inverted[0, 0] == 5
    assert notes == ("Inverted: light and dark exchanged.",)
