"""The one function that makes delivery: it opens real connections, reads the real store, and asks real DNS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mailsvc.clock import unix
from mailsvc.delivery.connection.connect import Connector
from mailsvc.delivery.connection.dial import dialer
from mailsvc.delivery.connection.mta_sts import Policies
from mailsvc.delivery.connection.mta_sts_file import over_https
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.connection.sources import Sources
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.sending_domain import InThread, SendingDomains
from mailsvc.delivery.service import Delivery
from mailsvc.delivery.shaping import Shaping
from mailsvc.net.dns import Resolver
from mailsvc.net.fetch import Fetcher
from mailsvc.smtp.client.client import Timeouts
from mailsvc.store.domains.domains import Domains
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.messages import InPieces, Messages
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.processes import ProcessRegistration
from mailsvc.store.queue.settle import Settling
from mailsvc.store.queue.tls import TlsRecords


def assemble(
    reactor: Any,
    pool: Pool,
    limits: DeliveryLimits,
    *,
    region: str,
    ehlo_name: str,
    process: ProcessRegistration,
    resolver: Resolver,
    routes: Routes,
    shaping: Shaping,
    sources: Sources,
    timeouts: Timeouts,
    policy_fetcher: Fetcher | None,
    domains: Domains,
    accounts: Accounts,
    secrets: Callable[[], Sequence[bytes]],
    messages: Messages,
    settling: Settling,
    signing_thread: InThread,
    body_thread: InThread,
) -> Delivery:
    """Delivery for one process. Without `policy_fetcher`, MTA-STS is off. `secrets` sign return paths, the first one new ones."""
    records = TlsRecords(pool)
    tls_counts = TlsCounts(reactor, records)
    policies = None if policy_fetcher is None else Policies(reactor, resolver, over_https(policy_fetcher), records, tls_counts)
    dial = dialer(reactor, ehlo_name, limits.connect_seconds, timeouts)
    return Delivery(
        reactor,
        limits,
        region,
        process,
        Queue(pool),
        routes,
        Connector(reactor, resolver, dial, limits, sources=sources),
        InPieces(messages),
        settling,
        SendingDomains(domains, accounts, secrets, signing_thread, body_thread),
        lambda: uuid7(unix(reactor)),
        shaping=shaping,
        policies=policies,
        tls_counts=tls_counts,
    )
