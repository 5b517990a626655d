"""Reads `multipart/form-data` (RFC 7578) from a file, without loading it: where each part begins and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from email.message import Message
from functools import partial
from itertools import pairwise
from typing import IO

import attrs

from mailsvc.http.problem import Problem, invalid
from mailsvc.http.strict_json import shortened

PARTS = 20
HEADERS = 8192  # bytes of the header of a part
BLOCK = 1 << 20
_MEDIA = "multipart/form-data"


@attrs.frozen
class Part:
    """The content of a part: its bytes `start` to `end` of the file."""

    start: int
    end: int

    def read(self, file: IO[bytes], most: int) -> bytes:
        """Its beginning."""
        file.seek(self.start)
        return file.read(min(most, self.end - self.start))


async def pieces(part: Part, file: IO[bytes], size: int, run: Callable[[Callable[[], bytes]], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    """The content of a part in pieces. `run` reads one of them, in a thread if the file is large."""
    for at in range(part.start, part.end, size):
        yield await run(partial(Part(at, min(at + size, part.end)).read, file, size))


def boundary(content_type: bytes) -> bytes:
    """What separates the parts, from the Content-Type header. Raises Problem."""
    header = Message()
    header["content-type"] = content_type.decode("latin-1")
    try:
        found = (header.get_boundary() or "").encode("latin-1") if header.get_content_type() == _MEDIA else b""
    except (ValueError, LookupError):  # 2231: its parameters name a character set, which can be wrong
        found = b""
    if not found or len(found) > 70:  # 2046 §5.1.1
        raise Problem(415, "validation_error", f"The request body must be sent with `Content-Type: {_MEDIA}` and a boundary.")
    return found


def parts(file: IO[bytes], separator: bytes) -> Mapping[str, Part]:
    """The parts by name. Blocking: call it in a thread if the file is large. Raises Problem, also for two parts with one name."""
    # 2046 §5.1.1: each part follows a line with two hyphens and the boundary, and a line break before it belongs to that line.
    found: dict[str, Part] = {}
    edges = list(_edges(file, b"\r\n--" + separator))
    for (_, start), (end, _) in pairwise(edges):
        file.seek(start)
        head, blank, _ = file.read(min(HEADERS, end - start)).partition(b"\r\n\r\n")
        if not blank:
            raise invalid("The request body is not valid multipart/form-data: a part has no end of its header.", 400)
        name = _name(head)
        if name in found:  # one of them would be ignored
            raise invalid(f"The `{shortened(name)}` field is given twice.")
        if name is not None:
            found[name] = Part(start + len(head) + len(blank), end)
    if not edges:
        raise invalid("The request body is not valid multipart/form-data: its boundary does not occur.", 400)
    return found


def _edges(file: IO[bytes], line: bytes) -> Iterator[tuple[int, int]]:
    """Where each boundary line begins and ends. The first has no line break before it."""
    file.seek(0)
    offset, data, count = -2, b"\r\n" + file.read(BLOCK), 0
    while True:
        at = data.find(line)
        if at < 0:
            more = file.read(BLOCK)
            if not more:
                return
            kept = max(0, len(data) - len(line) + 1)
            offset, data = offset + kept, data[kept:] + more
            continue
        count += 1
        if count > PARTS + 1:
            raise invalid(f"The request body can have at most {PARTS} parts.")
        yield offset + at, offset + at + len(line)
        offset, data = offset + at + len(line), data[at + len(line) :]


def _name(head: bytes) -> str | None:
    """The name of a part, from its Content-Disposition header. Its file name and type are not looked at."""
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            header = Message()
            header["content-disposition"] = value.decode("utf-8", "replace").strip()
            try:
                found = header.get_param("name", header="content-disposition")
            except (ValueError, LookupError):
                return None
            return found if isinstance(found, str) else None
    return None
