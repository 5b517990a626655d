"""Hostile images: they claim more than they have, expand to much more than their size, or are cut."""

from __future__ import annotations

import struct
import zlib

from PIL import Image

from tests.broadcasts.pictures import chunk, claimed, encoded, picture
from tests.hostile.inputs import Made, fill, hostile

LARGEST = 10 << 20
SIDE = 4_900  # just below the limit of pixels


def _padded(data: bytes, size: int) -> bytes:
    """The same with a comment of about `size` bytes at the end."""
    return fill(b"x", size, data)


# The child that decodes images may take its whole limit of CPU; the daemon itself does nothing meanwhile.
@hostile("image", repeat=1, most=LARGEST, cpu=20.0)
def images(size: int) -> Made:
    yield "many pixels", _padded(encoded(Image.new("RGB", (SIDE, SIDE)), "PNG"), size)
    yield "more pixels than allowed", _padded(encoded(Image.new("1", (9_000, 9_000)), "PNG"), size)
    yield "claimed pixels", _padded(claimed(2**31 - 1, 2**31 - 1), size)
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        yield f"{kind} and rubbish", _padded(picture(kind, (100, 100)), size)
        yield f"{kind} without its second half", picture(kind, (200, 200))[:500]
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x4c\x01\x00"
    yield "frames", fill(frame, size, b"GIF89a" + struct.pack("<HH", 300, 300) + b"\x80\x00\x00" + bytes(6), b"\x3b")
    bomb = zlib.compress(b"a" * (50 * size), 9)
    text = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    yield "compressed text", text + chunk(b"zTXt", b"a\0\0" + bomb) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    yield "chunks", fill(chunk(b"tEXt", b"a\0b"), size, text, chunk(b"IEND", b""))
    yield "segments", fill(b"\xff\xe1\x00\x04ab", size, b"\xff\xd8", b"\xff\xd9")
    yield "markup", fill(b"<a>", size, b"<svg xmlns='http://www.w3.org/2000/svg'>")
