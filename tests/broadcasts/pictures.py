"""Files of images, made here."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image

SECRET = b"51 degrees north"  # in the metadata of every image made here


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    into = io.BytesIO()
    image.save(into, kind, **options)
    return into.getvalue()


def picture(kind: str = "PNG", size: tuple[int, int] = (40, 30)) -> bytes:
    """A picture with metadata."""
    image, exif = Image.linear_gradient("L").resize(size).convert("RGB"), Image.Exif()
    exif[0x010E] = SECRET.decode()
    if kind == "GIF":
        return encoded(image, kind, comment=SECRET)
    return encoded(image, kind, exif=exif.tobytes())


def animation(kind: str, frames: int = 3, size: tuple[int, int] = (20, 20)) -> bytes:
    images = [Image.new("RGB", size, (each * 80 % 256, 0, 99)) for each in range(frames)]
    return encoded(images[0], kind, save_all=True, append_images=images[1:], duration=[40] * frames, loop=0)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def claimed(width: int, height: int) -> bytes:
    """A small PNG that says to be large."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def transparent(depth: int, gray: bool, row: bytes, clear: bytes) -> bytes:
    """A PNG with one row of pixels, of which those with the value `clear` are transparent."""
    width = len(row) * 8 // depth // (1 if gray else 3)
    head = struct.pack(">IIBBBBB", width, 1, depth, 0 if gray else 2, 0, 0, 0)
    data = chunk(b"tRNS", clear) + chunk(b"IDAT", zlib.compress(b"\0" + row))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


def printed_profile() -> bytes:
    """The ICC profile of a printer whose cyan is red: mft1 (ICC.1 §10.10), with a table of the 16 mixtures of full inks."""
    ramp, colors = bytes(range(256)), bytearray()
    for inks in range(16):  # the first ink, cyan, changes slowest
        colors += bytes((136, 208, 195)) if inks >= 8 else bytes((0 if inks & 1 else 255, 128, 128))
    matrix = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    table = b"mft1\0\0\0\0" + bytes((4, 3, 2, 0)) + matrix + ramp * 4 + bytes(colors) + ramp * 3
    white = b"XYZ \0\0\0\0" + struct.pack(">3i", 63190, 65536, 54061)
    start = 128 + 4 + 2 * 12
    places = struct.pack(">I", 2) + b"A2B0" + struct.pack(">II", start, len(table))
    table += bytes(-len(table) % 4)
    places += b"wtpt" + struct.pack(">II", start + len(table), len(white))
    size = start + len(table) + len(white)
    head = struct.pack(">I4sI4s4s4s12x4s", size, b"test", 0x02400000, b"prtr", b"CMYK", b"Lab ", b"acsp")
    return head.ljust(128, b"\0")[:68] + struct.pack(">3i", 63190, 65536, 54061) + bytes(48) + places + table + white
