"""Finds an address: where it is and how often, or the rows and messages themselves, for an archive."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import attrs
import orjson

from mailsvc.mail.address_search import Address, Search
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.messages import UNREADABLE, InThread, Messages
from mailsvc.store.privacy.rows import Rows

PIECE = 192 * 1024  # bytes of a message in one line of an archive
EXAMPLES = 10  # rows of each place that are named
_SECRETS = ("password",)
_INBOX = "SELECT message FROM sandbox_emails WHERE id = %(id)s::uuid"


@attrs.frozen
class Found:
    """How many rows of each place have the address, and the keys of some of them."""

    counts: Mapping[str, int]
    examples: Mapping[str, list[Mapping[str, str]]]


@attrs.frozen
class Row:
    """A row for the archive, without secrets."""

    table: str
    content: Mapping[str, Any]


@attrs.frozen
class Message:
    """A message for the archive."""

    name: str
    content: bytes = attrs.field(repr=False)


class Busy(Exception):
    """Others read all data at the moment."""


@attrs.define(eq=False)
class Turn:
    """Of the requests of a process, one of each account reads all its data at a time, and those of `most` accounts.

    A client that reads the archive slowly keeps its turn for as long, so it must not be the only one.
    """

    most: int = 4
    _taken: set[UUID] = attrs.field(factory=set, init=False)

    @contextmanager
    def take(self, account_id: UUID) -> Iterator[None]:
        """Raises Busy."""
        if account_id in self._taken or len(self._taken) >= self.most:
            raise Busy
        self._taken.add(account_id)
        try:
            yield
        finally:
            self._taken.discard(account_id)


@attrs.frozen
class Finder:
    """In one account, or in all. `in_thread` runs a function in a thread."""

    pool: Pool
    email: str
    account: UUID | None
    in_thread: InThread
    bodies: BodyKeys | None = None

    @property
    def _rows(self) -> Rows:
        return Rows(Address(self.email), self.account)

    @property
    def _messages(self) -> Messages:
        return Messages(self.pool, Search(Address(self.email)), self.account, self.in_thread, self.bodies)

    async def find(self) -> Found:
        counts: Counter[str] = Counter()
        examples: dict[str, list[Mapping[str, str]]] = {}

        def add(place: str, key: Mapping[str, str]) -> None:
            counts[place] += 1
            if counts[place] <= EXAMPLES:
                examples.setdefault(place, []).append(key)

        for shape in (await statements.shapes(self.pool)).values():
            async for hit in self._rows.find(self.pool, shape):
                for column in hit.columns:
                    add(f"{shape.name}.{column}", hit.key)
        for place, found in (
            ("messages.bytes", self._messages.stored()),
            ("sandbox_emails.message", self._messages.inbox()),
            ("contact_import_chunks.data", self._messages.chunks()),
        ):
            async for key, has in found:
                if has or has is None:
                    add(place if has else UNREADABLE, key)
        return Found(dict(counts), examples)

    async def archive(self) -> AsyncIterator[Row | Message]:
        """Every row that has the address, table by table, then the messages."""
        for shape in (await statements.shapes(self.pool)).values():
            sql = statements.rows(shape, [name for name in _SECRETS if name in shape.types])
            async for hit in self._rows.find(self.pool, shape):
                for (content,) in await self.pool.rows(sql, hit.key):
                    yield Row(shape.name, content)
        async for key, has in self._messages.stored():
            if has:
                yield Message(f"{key['email_id']}.eml", await self._messages.whole(key))
        async for key, has in self._messages.inbox():
            if has:
                yield Message(f"inbox/{key['id']}.eml", (await self.pool.rows(_INBOX, key))[0][0])


async def archive_lines(finder: Finder) -> AsyncGenerator[bytes, None]:
    """The archive as JSON lines: `{table, row}`, and `{message, content}` for each piece of a message, in base64."""
    async for each in finder.archive():
        if isinstance(each, Row):
            yield orjson.dumps({"table": each.table, "row": each.content}) + b"\n"
        else:
            for start in range(0, len(each.content), PIECE):
                piece = base64.b64encode(each.content[start : start + PIECE]).decode()
                yield orjson.dumps({"message": each.name, "content": piece}) + b"\n"
