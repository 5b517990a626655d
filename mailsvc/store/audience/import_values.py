"""The values of imports that the store reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.store.audience.values import Choice, PropertyValue

Status = Literal["uploaded", "queued", "in_progress", "completed", "failed"]
STATUSES: tuple[Status, ...] = ("queued", "in_progress", "completed", "failed")


@attrs.frozen
class ImportRow:
    """A contact of a file. None: the cell is empty or there is no such column. `properties`: by number."""

    email: str
    address: str
    first_name: str | None
    last_name: str | None
    unsubscribed: bool
    properties: Mapping[str, PropertyValue]
    hash: bytes = attrs.field(repr=False)

    def merged(self, later: ImportRow) -> ImportRow:
        """Two rows with the same address: what the later one says counts, but an unsubscribe stays."""
        return attrs.evolve(
            self,
            first_name=later.first_name or self.first_name,
            last_name=later.last_name or self.last_name,
            unsubscribed=self.unsubscribed or later.unsubscribed,
            properties={**self.properties, **later.properties},
        )


@attrs.frozen
class RowError:
    """A row that was not imported. `line`: where it begins in the file, from 1."""

    line: int
    reason: str
    value: str


@attrs.frozen
class Orders:
    """What an import does with its rows. `columns`: as audience/import_plan reads them; `width`: how many the header has."""

    columns: Mapping[str, Any]
    update: bool  # contacts that exist already; otherwise they are skipped
    segments: Sequence[UUID]
    topics: Sequence[Choice]
    width: int | None = None

    def stored(self) -> dict[str, Any]:
        topics = [[str(each.topic_id), each.subscribed] for each in self.topics]
        segments = list(map(str, self.segments))
        return {"columns": dict(self.columns), "update": self.update, "segments": segments, "topics": topics, "width": self.width}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Orders:
        topics = tuple(Choice(UUID(id_), subscribed) for id_, subscribed in stored["topics"])
        return cls(stored["columns"], stored["update"], tuple(map(UUID, stored["segments"])), topics, stored.get("width"))


@attrs.frozen
class Counts:
    total: int = 0
    created: int = 0
    updated: int = 0
    skipped: int = 0
    failed: int = 0


@attrs.frozen
class Import:
    """`status` uploaded: it waits for its orders, which are empty. `reason`: why the whole import failed.

    `position`, `line`: how much of the file is done, in bytes and lines.
    """

    account_id: UUID
    id: UUID
    status: Status
    orders: Orders
    bytes: int
    position: int
    line: int
    counts: Counts
    reason: str | None
    created_at: datetime
    completed_at: datetime | None


@attrs.frozen
class Batch:
    """Rows with their errors, and the position in the file after them. Several rows can have the same address."""

    rows: Sequence[ImportRow]
    errors: Sequence[RowError]
    position: int
    line: int


@attrs.frozen
class Lost(Exception):
    """Another process works on the import now."""
