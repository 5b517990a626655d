"""The audience of a process: its stores, and what runs in the background."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import attrs

from mailsvc.audience.double_opt_in import CHANNEL as CONFIRMATIONS
from mailsvc.audience.double_opt_in import ConfirmationSender
from mailsvc.audience.imports import CHANNEL as IMPORTS
from mailsvc.audience.imports import ImportWorker
from mailsvc.clock import utc
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.incoming import Incoming
from mailsvc.intake import Admitted, Intake, Key, Rejected
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.offload import InThread
from mailsvc.runtime.polling import PollingLoop, every
from mailsvc.settings.audience import Audience
from mailsvc.settings.plans import Exhausted
from mailsvc.store.audience.cleanup import Cleanup
from mailsvc.store.audience.definitions import KEPT
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool

IMPORTS_EVERY = CONFIRMATIONS_EVERY = 2.0  # seconds
CLEANUP_EVERY = 60.0
UPLOADS_KEPT = timedelta(days=1)  # files whose columns nobody chose


def assemble(
    reactor: Any,
    pool: Pool,
    encryption: Encryption,
    settings: Audience,
    notifications: Notifier,
    in_thread: InThread,
    opened: Opened,
    intake: Intake,
    base_url: str,
) -> AudienceContext:
    """Starts what runs in the background, until `opened` is closed."""
    context = AudienceContext.of(pool, reactor, encryption, settings, partial(notifications.notify, "events"), base_url)
    context.on_import = partial(notifications.notify, IMPORTS)
    context.on_request = partial(notifications.notify, CONFIRMATIONS)
    sender = ConfirmationSender(context.confirmations, context.links, Submission(intake, Accounts(pool, reactor)).submit, reactor)
    confirmations = PollingLoop(reactor, "requesting confirmations", sender.send_due, CONFIRMATIONS_EVERY)
    notifications.listen(CONFIRMATIONS, confirmations.wake)
    confirmations.start()
    opened.add("requests for confirmation", confirmations.stop)
    worker = ImportWorker(context.imports, context.contacts.keys, in_thread, reactor, context.limits)
    imports = PollingLoop(reactor, "importing contacts", worker.poll_all, IMPORTS_EVERY)
    notifications.listen(IMPORTS, imports.wake)
    imports.start()
    opened.add("imports", imports.stop)
    opened.add("the import in progress", worker.stop)
    cleanup, days = Cleanup(pool, context.imports), timedelta(days=settings.import_days)
    opened.add(
        "cleaning up contacts",
        every(
            reactor, CLEANUP_EVERY, "removing deleted segments and topics",
            lambda: cleanup.run(utc(reactor) - days, utc(reactor) - UPLOADS_KEPT, utc(reactor) - KEPT),
        ),
    )  # fmt: skip
    return context


@attrs.frozen
class Submission:
    """Gives the emails of a double opt-in to intake, as the account's own."""

    intake: Intake
    accounts: Accounts

    async def submit(self, account_id: UUID, email: Incoming, key: str) -> UUID | str:
        """Its ID, or why it was refused."""
        account = await self.accounts.get(account_id)
        if account is None or account.suspended_at is not None:
            return "the account is suspended"
        once = Key("confirmations", key, hashlib.sha256(key.encode()).digest())
        admission = await self.intake.submit(Caller.without_key(account), [email], once)
        if isinstance(admission, Admitted):
            [answer] = admission.results
            return answer if isinstance(answer, UUID) else answer.message
        if isinstance(admission, Exhausted):
            return admission.message
        return admission.refusals[0].message if isinstance(admission, Rejected) else "it cannot be accepted now"
