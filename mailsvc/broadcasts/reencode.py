"""Decodes an uploaded image and encodes it again, without metadata: the program of a child process (broadcasts/images starts it).

It reads the file from standard input and writes a line of JSON, followed by the new file. It imports nothing else of mailsvc, has neither
settings nor secrets, and cannot use more memory and CPU than the limits below. So a file that exploits or exhausts a decoder ends this
process and nothing else.
"""

from __future__ import annotations

import io
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageCms, ImageOps, ImageSequence

MEMORY, SECONDS = 1 << 30, 15  # bytes of address space, and of CPU
PIXELS = 25_000_000  # of all frames together
SIDE = 10_000  # pixels
FRAMES = 200
READ = {"PNG": "png", "JPEG": "jpeg", "MPO": "jpeg", "GIF": "gif", "WEBP": "webp"}  # MPO: JPEG from phones, with a second picture
ANIMATED = ("gif", "webp")
_SAVED: dict[str, dict[str, Any]] = {
    "png": {"format": "PNG", "optimize": True},
    "jpeg": {"format": "JPEG", "quality": 88, "optimize": True, "progressive": True},
    "gif": {"format": "GIF"},
    "webp": {"format": "WEBP", "quality": 88, "method": 3},
}
# How a PNG's transparent value is brought to the 8 bits of its pixels, which are widened or cut off when they are read.
_TO_8_BITS: dict[str, Callable[[int], int]] = {
    "L;2": lambda gray: gray * 85,
    "L;4": lambda gray: gray * 17,
    "I;16B": lambda gray: gray >> 8,
    "RGB;16B": lambda part: part >> 8,
}
_MODES = {"png": ("1", "L", "LA", "P", "RGB", "RGBA"), "jpeg": ("L", "RGB"), "gif": ("L", "P", "RGBA"), "webp": ("RGB", "RGBA")}


class Refused(Exception):
    """Why the file is not accepted: `kind`, `size`, `frames` or `broken`."""


def encoded_again(data: bytes) -> tuple[dict[str, Any], bytes]:
    """What the new file is, and its content. Raises Refused."""
    Image.MAX_IMAGE_PIXELS = None  # the limits here are narrower, and count frames
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "GIF", "WEBP"))
    except Exception:
        raise Refused("kind") from None
    kind, (width, height) = READ[image.format or ""], image.size
    if max(width, height) > SIDE or width * height > PIXELS:
        raise Refused("size")
    try:
        if kind == "png":
            _scale_transparent(image)
        frames = _frames(image, kind)
        made = _saved(frames, kind, image.info.get("loop"))
    except Refused:
        raise
    except MemoryError:
        raise Refused("size") from None
    except Exception:
        raise Refused("broken") from None
    width, height = frames[0][0].size
    return {"kind": kind, "width": width, "height": height, "frames": len(frames)}, made


def _scale_transparent(image: Any) -> None:
    scale, value = _TO_8_BITS.get(image.tile[0].args), image.info.get("transparency")
    if scale is not None and value is not None:
        image.info["transparency"] = tuple(map(scale, value)) if isinstance(value, tuple) else scale(value)


def _frames(image: Any, kind: str) -> list[tuple[Any, int]]:
    """The pictures, and for how many milliseconds each is shown."""
    count = getattr(image, "n_frames", 1) if kind in ANIMATED else 1
    if count > FRAMES or count * image.width * image.height > PIXELS:
        raise Refused("frames")
    if count == 1:
        return [(_clean(ImageOps.exif_transpose(image), kind), 0)]
    return [(_clean(each.convert("RGBA"), kind), int(each.info.get("duration", 0))) for each in ImageSequence.Iterator(image)]


def _clean(image: Any, kind: str) -> Any:
    """The pixels in sRGB and nothing else."""
    image.load()
    profile, transparent = image.info.get("icc_profile"), image.info.get("transparency")
    if image.mode.startswith("I"):  # grays of 16 bits, which convert() would cut off instead of scaling
        image = image.convert("I").point(lambda gray: gray * (1 / 256)).convert("L")
    if image.mode == "CMYK":  # its profile leads to RGB
        image, profile = _in_srgb(image, profile), None
    if image.mode not in _MODES[kind]:
        image = image.convert("RGBA" if kind != "jpeg" and (transparent is not None or image.mode in ("PA", "La", "RGBa")) else "RGB")
        transparent = None
    image = _in_srgb(image, profile)
    image.info = {} if transparent is None else {"transparency": transparent}
    return image


def _in_srgb(image: Any, profile: bytes | None) -> Any:
    """Most profiles are of sRGB anyway; a profile that can't be used is ignored, as most programs do."""
    if not profile or image.mode not in ("RGB", "RGBA", "CMYK"):
        return image
    mode = "RGB" if image.mode == "CMYK" else image.mode
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        return ImageCms.profileToProfile(image, given, ImageCms.createProfile("sRGB"), outputMode=mode) or image
    except Exception:
        return image


def _saved(frames: list[tuple[Any, int]], kind: str, loop: int | None) -> bytes:
    into, options = io.BytesIO(), dict(_SAVED[kind])
    if len(frames) > 1:
        options |= {"save_all": True, "append_images": [each for each, _ in frames[1:]], "duration": [shown for _, shown in frames]}
        options |= {} if loop is None else {"loop": loop}
        options |= {"disposal": 2} if kind == "gif" else {}
    frames[0][0].save(into, **options)
    return into.getvalue()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        facts, content = encoded_again(sys.stdin.buffer.read())
    except Refused as why:
        facts, content = {"refused": str(why)}, b""
    sys.stdout.buffer.write(json.dumps(facts).encode() + b"\n" + content)


if __name__ == "__main__":
    main()
