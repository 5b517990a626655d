"""Imports contacts in the background: in each process one file at a time, each for a few seconds, one batch of rows in a transaction.

The rows of the next batch are read in a thread while the current one is written. Where it is in the file is stored with every batch, so
another process can continue at any time.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.audience import csv_reader, import_plan
from mailsvc.audience.import_plan import Plan
from mailsvc.runtime.offload import InThread
from mailsvc.store.audience.import_values import Batch, Import, ImportRow, Lost, RowError
from mailsvc.store.audience.imports import CHUNK, Imports
from mailsvc.store.audience.keys import AudienceKey, AudienceKeys
from mailsvc.store.audience.values import Limits
from mailsvc.store.postgres.errors import StoreError, Transient

T = TypeVar("T")
log = Logger()

CHANNEL = "imports"  # of notifications: there is a new one
BATCH = 2000  # rows in a transaction
TURN = 5.0  # seconds that an import gets before the next one
LONGEST = 2 * CHUNK  # bytes without the end of a row
ANALYZE = 20_000  # rows after which the planner needs new statistics


class TooLong(Exception):
    """The file has a row that does not end."""


class Missing(Exception):
    """The file is gone: another process completed the import, or the account is being deleted."""


@attrs.define(eq=False)
class File:
    """The rows of an import from its position on."""

    imports: Imports
    one: Import
    key: AudienceKey
    in_thread: InThread
    limits: Limits
    _plan: Plan = attrs.field(init=False)
    _data: bytes = attrs.field(default=b"", init=False, repr=False)
    _position: int = attrs.field(init=False)
    _line: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._plan = Plan.of(self.one.orders.columns, self.one.orders.width)
        self._position, self._line = self.one.position, self.one.line

    async def next(self) -> Batch | None:
        """The next rows; None at the end."""
        while True:
            final = self._position + len(self._data) >= self.one.bytes
            if final and not self._data:
                return None
            piece, rows, errors = await self.in_thread(partial(self._read, self._data, final, self._line))
            if piece.bytes:
                self._data = self._data[piece.bytes :]
                self._position += piece.bytes
                self._line += piece.lines
                return Batch(rows, errors, self._position, self._line)
            if len(self._data) > LONGEST:
                raise TooLong
            await self._more()

    async def _more(self) -> None:
        at = self._position + len(self._data)
        more = (await self.imports.chunk(self.one, at // CHUNK))[at % CHUNK :]
        if not more:
            raise Missing
        self._data += more

    def _read(self, data: bytes, final: bool, line: int) -> tuple[csv_reader.Piece, list[ImportRow], list[RowError]]:
        piece = csv_reader.read(data, self._plan.separator, final, BATCH)
        rows, errors = list[ImportRow](), list[RowError]()
        for row in piece.rows:
            found = import_plan.read(self._plan, row, line + row.line + 1, self.key, self.limits)
            if isinstance(found, ImportRow):
                rows.append(found)
            else:
                errors.append(found)
        return piece, rows, errors


@attrs.define(eq=False)
class ImportWorker:
    """`poll` works on one import for a while; call it again while it returns True."""

    imports: Imports
    keys: AudienceKeys
    in_thread: InThread
    clock: Any
    limits: Limits = attrs.field(factory=Limits)
    stopping: bool = attrs.field(default=False, init=False)

    async def poll(self) -> bool:
        """Whether there was an import to work on."""
        if self.stopping:
            return False
        one = await self.imports.take()
        if one is None:
            return False
        try:
            await self._work(one)
        except Lost:
            log.info("Import {id} is continued by another process", id=one.id)
        except TooLong:
            await self.imports.end(one, "The file has a row that does not end.")
        except Missing:
            await self.imports.end(one, "The file is no longer stored.")  # if it is still this process's
        except Transient:
            raise
        except Exception:
            log.failure("Import {id} failed", id=one.id)
            await self.imports.end(one, "An unexpected error. The operator can find it in the log.")
        return True

    async def stop(self) -> None:
        """End after the current batch. Another process continues, or this one when it starts again."""
        self.stopping = True

    async def poll_all(self) -> None:
        while await self.poll():
            pass

    async def _work(self, one: Import) -> None:
        file = File(self.imports, one, await self.keys.of(one.account_id), self.in_thread, self.limits)
        until = self.clock.seconds() + TURN
        batch = await file.next()
        while batch is not None:
            following = Deferred.fromCoroutine(file.next())
            try:
                before, one = one, await self.imports.commit(one, batch)
            except BaseException:
                following.addErrback(lambda _: None)
                await following
                raise
            batch = await following
            if before.counts.total // ANALYZE < one.counts.total // ANALYZE and _is_power(one.counts.total // ANALYZE):
                await self._analyze()
            if batch is not None and (self.stopping or self.clock.seconds() >= until):
                await self.imports.give_back(one)
                return
        if one.counts.total >= ANALYZE:
            await self._analyze()
        await self.imports.end(one)
        log.info("Import {id} is completed: {total} rows", id=one.id, total=one.counts.total)

    async def _analyze(self) -> None:
        """It only helps the planner, and cannot run beside a VACUUM or a new index of the table."""
        try:
            await self.imports.analyze()
        except StoreError as error:
            log.warn("The statistics of contacts could not be updated after an import: {reason}", reason=str(error))


def _is_power(number: int) -> bool:
    """Of two: each time there are twice as many rows."""
    return number & (number - 1) == 0
