"""What the collections of the audience share: the stores, and what happens after a change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import attrs
from twisted.internet.defer import TimeoutError

from mailsvc.audience.double_opt_in import ConfirmationLinks
from mailsvc.http.answer import audited
from mailsvc.http.request import Request
from mailsvc.runtime.budget import TURN_SECONDS
from mailsvc.semaphore import Semaphore
from mailsvc.settings.audience import Audience
from mailsvc.store.audience.confirmations import Confirmations
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.evidence import Evidence
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.audience.imports import Imports
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.listing import ContactLists
from mailsvc.store.audience.preferences import Preferences
from mailsvc.store.audience.properties import Properties
from mailsvc.store.audience.segments import Segments
from mailsvc.store.audience.topics import Topics
from mailsvc.store.audience.values import By, Contact, Limits
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.people.audit import Line
from mailsvc.store.postgres.pool import Pool


def _nothing() -> None: ...


class UploadsBusy(Exception):
    """Other files have been stored for so long that one did not get its turn."""


@attrs.define(eq=False)
class AudienceContext:
    """`on_change` is called after changes that wrote events, `on_request` when a contact may have been asked to confirm
    something, `on_import` when there is a new import. `uploads`: files that are stored at the same time. `part`: bytes of their
    header line, and of each other part of their form.
    """

    contacts: Contacts
    lists: ContactLists
    segments: Segments
    topics: Topics
    properties: Properties
    imports: Imports
    confirmations: Confirmations
    preferences: Preferences
    links: ConfirmationLinks
    evidence: Evidence
    figures: AudienceFigures
    clock: Any
    on_change: Callable[[], None] = _nothing
    on_request: Callable[[], None] = _nothing
    on_import: Callable[[], None] = _nothing
    limits: Limits = attrs.field(factory=Limits)
    uploads: int = 2
    part: int = 256 * 1024
    turns: Semaphore = attrs.field(init=False)  # to store a file

    def __attrs_post_init__(self) -> None:
        self.turns = Semaphore(self.uploads)

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """While a file is stored. Raises UploadsBusy if others take too long."""
        try:
            await self.turns.acquire().addTimeout(TURN_SECONDS, self.clock)
        except TimeoutError:
            raise UploadsBusy from None
        try:
            yield
        finally:
            self.turns.release()

    @classmethod
    def of(
        cls,
        pool: Pool,
        clock: Any,
        encryption: Encryption,
        limits: Audience,
        on_change: Callable[[], None] = _nothing,
        base_url: str = "",
    ) -> AudienceContext:
        keys = AudienceKeys(pool, encryption)
        given = Limits(limits.name, limits.value, timedelta(days=limits.confirm_days))
        segments, topics = Segments(pool, clock, limits.segments), Topics(pool, clock, limits.topics)
        properties, imports = Properties(pool, clock, limits.properties), Imports(pool, clock, limits.import_errors, limits.imports)
        return cls(
            Contacts(pool, clock, keys, given), ContactLists(pool, limits.searched), segments, topics, properties, imports,
            Confirmations(pool), Preferences(pool, clock), ConfirmationLinks(keys, base_url), Evidence(pool), AudienceFigures(pool, clock),
            clock, on_change, limits=given, uploads=limits.uploads, part=limits.import_part,
        )  # fmt: skip

    def changed(self) -> None:
        self.on_change()
        self.on_request()


def by(request: Request) -> By:
    """The evidence of a change by an API key."""
    return By("api", {"api_key_id": str(request.caller.key_id), "ip": request.address()})


def about(request: Request, action: str) -> Callable[[Contact], Sequence[Line]]:
    """An entry for the audit log. It has the ID, because the log outlives the address."""
    return lambda contact: [audited(request, action, str(contact.id))]
