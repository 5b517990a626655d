"""Serves the images of broadcasts (`/images/…`), on the hosts that serve tracked links. They set no cookie and read none.

The address names account and image; nobody can guess it. What is served was decoded and encoded again by us (broadcasts/reencode), so it
is an image whatever was uploaded; a policy keeps browsers from treating it as anything else.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from typing import Any
from uuid import UUID

import attrs
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from mailsvc.clock import unix
from mailsvc.http.request import Request
from mailsvc.http.resources.tracking.links import host_of, send
from mailsvc.semaphore import Semaphore
from mailsvc.store.broadcasts.images import Images, Kind
from mailsvc.store.cache import Cache
from mailsvc.store.postgres.errors import Transient, Unavailable
from mailsvc.tracking.hosts import TrackingHosts

PATH = "/images/"
CACHED = 32 << 20  # bytes of images in memory
READ = 2  # images that are read at the same time, so that strangers cannot take all memory and connections to the database
WAITING = 1000  # images that wait for their turn; requests for others are told to try again
SECONDS = 60.0  # for which an image is taken from memory: so long, at most, it is served after it was deleted
_ENDINGS: dict[Kind, str] = {"png": ".png", "jpeg": ".jpg", "gif": ".gif", "webp": ".webp"}
_HEADERS = {
    b"cache-control": b"public, max-age=31536000, immutable",
    b"content-security-policy": b"sandbox; default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"cross-origin",
    b"content-disposition": b"inline",
}


def path_of(account_id: UUID, image_id: UUID, kind: Kind) -> str:
    """The path of an image's address."""
    return f"{PATH}{base64.urlsafe_b64encode(account_id.bytes + image_id.bytes).rstrip(b'=').decode()}{_ENDINGS[kind]}"


def _ids(path: bytes) -> tuple[UUID, UUID] | None:
    name = path[len(PATH) :].partition(b".")[0]
    try:
        both = base64.b64decode(name + b"=", b"-_", validate=True)
    except binascii.Error:
        return None
    return (UUID(bytes=both[:16]), UUID(bytes=both[16:])) if len(both) == 32 else None


@attrs.define(eq=False)
class _Cache:
    """The images that were requested last, by account and image: hosts serve those of their account only."""

    clock: Any
    size: int = 0
    _held: OrderedDict[tuple[UUID, UUID], tuple[float, Kind, bytes]] = attrs.field(factory=OrderedDict)

    def get(self, ids: tuple[UUID, UUID]) -> tuple[Kind, bytes] | None:
        found = self._held.get(ids)
        if found is None or unix(self.clock) - found[0] > SECONDS:
            return None
        self._held.move_to_end(ids)
        return found[1:]

    def put(self, ids: tuple[UUID, UUID], kind: Kind, content: bytes) -> None:
        before = self._held.pop(ids, None)
        self.size += len(content) - (len(before[2]) if before else 0)
        self._held[ids] = unix(self.clock), kind, content
        while self.size > CACHED:
            self.size -= len(self._held.popitem(last=False)[1][2])


class PublicImages(Resource):
    isLeaf = True

    def __init__(self, hosts: TrackingHosts, images: Images, clock: Any) -> None:
        super().__init__()
        self._hosts, self._images, self._cache, self._turns = hosts, images, _Cache(clock), Semaphore(READ)
        self._reads: Cache[tuple[UUID, UUID], tuple[Kind, bytes] | None] = Cache(clock, max_age=0.0, entries=1)  # those in progress

    def render(self, request: Request) -> int:
        request.detached(self._answer(request)).addErrback(request.processingFailed)
        return NOT_DONE_YET

    async def _answer(self, request: Request) -> None:
        ids = _ids(request.path)
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"allow", b"GET, HEAD")
            send(request, 405, b"")
            return
        found = None
        if ids is not None and self._hosts.serves(host_of(request), ids[0]):
            try:
                found = self._cache.get(ids) or await self._read(ids)
            except Transient:
                request.setHeader(b"retry-after", b"5")
                send(request, 503, b"")
                return
        if found is None or ids is None or request.path.decode("latin-1") != path_of(*ids, found[0]):
            send(request, 404, b"")
            return
        kind, content = found
        send(request, 200, content, f"image/{kind}".encode(), _HEADERS)

    async def _read(self, ids: tuple[UUID, UUID]) -> tuple[Kind, bytes] | None:
        """Recipients of a broadcast request the same images at the same time: those requests share a read."""
        return await self._reads.get(ids, lambda: self._stored(ids))

    async def _stored(self, ids: tuple[UUID, UUID]) -> tuple[Kind, bytes] | None:
        if len(self._turns.waiting) >= WAITING:
            raise Unavailable("Too many images are being read.")
        async with self._turns:
            found = await self._images.content(*ids)
        if found is not None:
            self._cache.put(ids, *found)
        return found
