"""From a request body to values: immediately if it is small, in a thread if it is large or takes long to read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import attrs

from mailsvc.http import strict_json
from mailsvc.http.fields import Bounds, Record, Rules
from mailsvc.http.problem import invalid, unavailable
from mailsvc.http.request import Request
from mailsvc.http.resources.schedule import Natural
from mailsvc.runtime.offload import InThread
from mailsvc.semaphore import Semaphore

T = TypeVar("T")
# Large bodies that are read at the same time; the others wait on disk. Two would not be faster, because each needs the interpreter
# lock, and the reactor would have to wait for both.
LARGE_AT_ONCE = 1
COPIES = 4  # of a large body that are in memory while it is read and becomes messages


@attrs.define(eq=False)
class Reader:
    bounds: Bounds
    in_thread: InThread
    seconds: Callable[[], float]
    _slots: Semaphore = attrs.field(factory=lambda: Semaphore(LARGE_AT_ONCE))

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)

    async def record(self, request: Request, record: Record) -> dict[str, Any]:
        """The fields of the body."""
        return await self.read(request, lambda value, rules: record.read(value, "", rules))

    async def read(self, request: Request, make: Callable[[Any, Rules], T]) -> T:
        """The result of `make` for the JSON of the body."""
        if request.large or not strict_json.light(request.body()):
            if request.large and not await request.turn(COPIES * request.received):
                raise unavailable()
            async with self._slots:
                return await self.in_thread(lambda: self._make(request, make, large=True))
        try:
            return self._make(request, make)
        except Natural:
            return await self.in_thread(lambda: self._make(request, make, natural=True))

    def _make(self, request: Request, make: Callable[[Any, Rules], T], *, large: bool = False, natural: bool = False) -> T:
        load = strict_json.load_large if large else strict_json.load
        try:
            value = request.json = load(request.body())
        except strict_json.Malformed as wrong:
            raise invalid(str(wrong), 400) from None
        return make(value, Rules(self.now(), self.bounds, natural or large))
