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
