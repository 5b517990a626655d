"""Reads uploaded images. Each is decoded and encoded again in a child process of its own (reencode); one at a time, and few wait."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import attrs
import orjson
from twisted.logger import Logger

from mailsvc.broadcasts import reencode
from mailsvc.runtime.offload import InThread
from mailsvc.semaphore import Semaphore
from mailsvc.store.broadcasts.images import Picture

log = Logger()
LARGEST = 10 << 20  # bytes, of a file and of what is made of it
DEADLINE = 20.0  # seconds
WAITING = 8  # uploads that wait for their turn; others are told to try again

_PROGRAM = str(Path(reencode.__file__))
_FILE = "This file can’t be read. Use a PNG, JPEG, GIF or WebP image."
_MEGAPIXELS = reencode.PIXELS // 1_000_000
_SENTENCES = {
    "kind": "This isn’t a PNG, JPEG, GIF or WebP image. Choose another file.",
    "broken": "The image is damaged. Save it again with another program and retry.",
    "size": f"The image has too many pixels. It can have {_MEGAPIXELS} megapixels, and {reencode.SIDE:,} pixels on a side.",
    "frames": f"The animation is too long. It can have {reencode.FRAMES} frames, and {_MEGAPIXELS} megapixels in all of them together.",
    "large": f"The image is larger than {LARGEST >> 20} MB. Make it smaller and retry.",
    "empty": "Choose a file.",
    "slow": "The image takes too long to read. Make it smaller and retry.",
}


@attrs.frozen
class Refused(Exception):
    """Why an image is not accepted, as a sentence. `later`: it could be accepted later."""

    sentence: str
    later: bool = False


@attrs.define(eq=False)
class ImageReader:
    in_thread: InThread
    deadline: float = DEADLINE
    _turn: Semaphore = attrs.field(factory=lambda: Semaphore(1), init=False)

    async def read(self, data: bytes) -> Picture:
        """The image without metadata. Raises Refused."""
        if not data or len(data) > LARGEST:
            raise Refused(_SENTENCES["large" if data else "empty"])
        if len(self._turn.waiting) >= WAITING:
            raise Refused("Too many images are being uploaded right now. Try again in a moment.", later=True)
        async with self._turn:
            return _picture(await self.in_thread(partial(_in_child, data, self.deadline)))


def _in_child(data: bytes, deadline: float) -> bytes:
    """What the child wrote. It has no environment and only standard files. Blocking."""
    command = [sys.executable, "-I", _PROGRAM]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=deadline, env={}, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise Refused(_SENTENCES["slow"]) from None
    if done.returncode:
        error = done.stderr[-500:].decode("utf-8", "replace")
        log.warn("An image ended the process that read it: {status}, {error}", status=done.returncode, error=error)
        raise Refused(_FILE)
    return done.stdout


def _picture(made: bytes) -> Picture:
    head, _, content = made.partition(b"\n")
    facts = orjson.loads(head)
    if "refused" in facts:
        raise Refused(_SENTENCES[facts["refused"]])
    if len(content) > LARGEST:
        raise Refused(_SENTENCES["large"])
    return Picture(kind=facts["kind"], width=facts["width"], height=facts["height"], content=content)
