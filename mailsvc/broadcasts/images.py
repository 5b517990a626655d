"""Reads uploaded images. Each is decoded and encoded again in a child process of its own (reencode); one at a time, accounts in turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import attrs
import orjson
from twisted.logger import Logger

from mailsvc.broadcasts import reencode
from mailsvc.fair_share import FairShare, TooManyWaiting
from mailsvc.runtime.offload import InThread
from mailsvc.store.broadcasts.images import Picture

log = Logger()
LARGEST = 10 << 20  # bytes, of a file and of what is made of it
DEADLINE = 20.0  # seconds
WAITING = 8  # uploads of an account that wait for their turn; others are told to try again

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
    _turns: FairShare = attrs.field(factory=lambda: FairShare(1, 1, WAITING), init=False)

    @asynccontextmanager
    async def turn(self, account_id: UUID) -> AsyncIterator[None]:
        """Wait for the turn of an account. Its file should not be in memory before. Raises Refused."""
        try:
            async with self._turns.place(account_id):
                yield
        except TooManyWaiting:
            raise Refused("Too many images are being uploaded right now. Try again in a moment.", later=True) from None

    async def read(self, data: bytes) -> Picture:
        """The image without metadata. Call it during a `turn`. Raises Refused."""
        if not data or len(data) > LARGEST:
            raise Refused(_SENTENCES["large" if data else "empty"])
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
