"""Uploaded images: which are accepted, what is left of them, and that their decoder cannot stop anything else."""

from __future__ import annotations

import io
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted
from PIL import Image
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.python.failure import Failure

from mailsvc.broadcasts import images
from mailsvc.broadcasts.images import LARGEST, WAITING, ImageReader, Refused
from mailsvc.store.broadcasts.images import Picture
from tests.broadcasts.pictures import SECRET, animation, claimed, encoded, picture, printed_profile, transparent

READER = ImageReader(lambda work: succeed(work()))


def opened(made: Picture) -> Any:
    return Image.open(io.BytesIO(made.content))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
@pytest_twisted.ensureDeferred
async def test_metadata_is_removed_and_the_picture_stays(kind: str) -> None:
    given = picture(kind)
    assert SECRET in given
    made = await READER.read(given)
    assert (made.kind, made.width, made.height) == (kind.lower(), 40, 30) and SECRET not in made.content
    image = opened(made)
    assert image.format == kind and not image.getexif() and not {"comment", "icc_profile", "xmp"} & set(image.info)
    dark, light = (image.convert("L").getpixel((20, row)) for row in (1, 28))
    assert dark < 60 < 190 < light


@pytest_twisted.ensureDeferred
async def test_a_photo_is_turned_as_its_metadata_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a phone that was held upright
    made = await READER.read(encoded(Image.new("RGB", (40, 30)), "JPEG", exif=exif.tobytes()))
    assert (made.width, made.height) == (30, 40)


@pytest_twisted.ensureDeferred
async def test_transparency_and_other_colors_stay() -> None:
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    for kind in ("PNG", "WEBP", "GIF"):
        assert opened(await READER.read(encoded(clear, kind))).convert("RGBA").getpixel((1, 1))[3] == 0, kind
    red = opened(await READER.read(encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG"))).getpixel((1, 1))
    assert red[0] > 200 and max(red[1:]) < 60
    gray = opened(await READER.read(encoded(Image.new("I;16", (4, 4), 0x7500), "PNG"))).convert("L").getpixel((1, 1))
    assert gray == 0x75


@pytest.mark.parametrize(
    ("depth", "gray", "row", "clear", "shown"),
    [
        (16, True, "0000 8000 ffff", "8000", [255, 0, 255]),
        (16, False, "800000000000 000100020003", "800000000000", [0, 255]),
        (8, True, "00 80 ff", "0080", [255, 0, 255]),
        (4, True, "5a", "0005", [0, 255]),
        (2, True, "1b", "0001", [255, 0, 255, 255]),
        (1, True, "aa", "0001", [0, 255] * 4),
    ],
)  # fmt: skip
@pytest_twisted.ensureDeferred
async def test_a_transparent_color_stays_transparent(depth: int, gray: bool, row: str, clear: str, shown: list[int]) -> None:
    read = opened(await READER.read(transparent(depth, gray, bytes.fromhex(row), bytes.fromhex(clear)))).convert("RGBA")
    assert [read.getpixel((x, 0))[3] for x in range(read.width)] == shown


@pytest_twisted.ensureDeferred
async def test_colors_of_print_become_srgb_by_their_profile() -> None:
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    red = opened(await READER.read(encoded(cyan, "JPEG", icc_profile=printed_profile()))).getpixel((4, 4))
    assert red[0] > 2 * max(red[1:])
    for broken in (b"no profile", printed_profile()[:400]):
        blue = opened(await READER.read(encoded(cyan, "JPEG", icc_profile=broken))).getpixel((4, 4))
        assert blue[0] < 60 and min(blue[1:]) > 200


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
@pytest_twisted.ensureDeferred
async def test_animations_keep_their_frames(kind: str) -> None:
    image = opened(await READER.read(animation(kind)))
    assert (image.n_frames, image.info["loop"]) == (3, 0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (b"", "Choose a file."),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "isn’t a PNG"),
        (b"<html><script>alert(1)</script>", "isn’t a PNG"),
        (encoded(Image.new("RGB", (4, 4)), "BMP"), "isn’t a PNG"),
        (picture()[:100], "damaged"),
        (claimed(100_000, 100_000), "too many pixels"),
        (claimed(10_001, 1), "too many pixels"),
        (claimed(5_000, 5_000), "damaged"),
        (animation("GIF", 201), "animation is too long"),
        (bytes(LARGEST + 1), "larger than 10 MB"),
    ],
    ids=["nothing", "SVG", "HTML", "BMP", "cut", "bomb", "wide", "less than it claims", "frames", "large"],
)
@pytest_twisted.ensureDeferred
async def test_other_files_are_refused_with_a_reason(given: bytes, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        await READER.read(given)
    assert sentence in refused.value.sentence


@pytest_twisted.ensureDeferred
async def test_a_program_after_the_picture_is_not_kept() -> None:
    assert b"<script>" not in (await READER.read(picture("GIF") + b"<script>alert(1)</script>")).content


@pytest_twisted.ensureDeferred
async def test_the_child_has_a_deadline_and_can_die_without_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    program = tmp_path / "child.py"
    monkeypatch.setattr(images, "_PROGRAM", str(program))
    for text, sentence in (("while True: pass", "takes too long"), ("import os; os.abort()", "can’t be read")):
        program.write_text(text)
        with pytest.raises(Refused) as refused:
            await ImageReader(READER.in_thread, deadline=1.0).read(picture())
        assert sentence in refused.value.sentence


def test_one_image_is_read_at_a_time_and_accounts_take_turns() -> None:
    """An account whose images take long delays each image of another one by one of its own, and cannot keep it from uploading."""
    reader, begun = ImageReader(READER.in_thread), list[UUID]()
    ends: list[Deferred[None]] = []
    mallory, alice = UUID(int=1), UUID(int=2)

    async def upload(account_id: UUID) -> None:
        async with reader.turn(account_id):
            begun.append(account_id)
            ends.append(Deferred())
            await ends[-1]

    many = [ensureDeferred(upload(mallory)) for _ in range(WAITING + 2)]
    assert many[-1].called and isinstance(many[-1].result, Failure)
    refused = many[-1].result.value
    assert isinstance(refused, Refused) and refused.later and begun == [mallory]
    many[-1].addErrback(lambda _: None)
    ensureDeferred(upload(alice))
    for number in range(WAITING + 2):
        ends[number].callback(None)
    assert begun == [mallory, mallory, alice, *[mallory] * (WAITING - 1)]
