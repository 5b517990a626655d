"""The one function that makes delivery: it opens real connections, reads the real store, and asks real DNS."""

from __future__ import annotations

from typing import Any

from mailsvc.clock import unix
from mailsvc.delivery.connection.connect import Connector
from mailsvc.delivery.connection.dial import dialer
from mailsvc.delivery.connection.mta_sts import Policies
from mailsvc.delivery.connection.mta_sts_file import over_https
from mailsvc.delivery.connection.pools import Pools
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.connection.source_state import SourceState
from mailsvc.delivery.connection.source_upkeep import SourceUpkeep
from mailsvc.delivery.connection.sources import SourceRules, Sources
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import Consent
from mailsvc.delivery.sending_domain import SendingDomains
from mailsvc.delivery.service import Delivery
from mailsvc.delivery.shaping import Shaping
from mailsvc.net.dns import Resolver
from mailsvc.net.fetch import Fetcher
from mailsvc.smtp.client.client import Timeouts
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.messages import InPieces, Messages
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.processes import ProcessRegistration
from mailsvc.store.queue.settle import Settling
from mailsvc.store.queue.sources import SourceTable
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
    sources: SourceRules,
    pools: Pools,
    timeouts: Timeouts,
    policy_fetcher: Fetcher | None,
    sending: SendingDomains,
    messages: Messages,
    settling: Settling,
    consent: Consent | None = None,
) -> tuple[Delivery, SourceUpkeep]:
    """Delivery for one process. Without `policy_fetcher`, MTA-STS is off."""
    table = SourceTable(pool, region)
    state = SourceState(reactor, table, sources.addresses, shaping, sources.overflow)
    records = TlsRecords(pool)
    tls_counts = TlsCounts(reactor, records)
    policies = None if policy_fetcher is None else Policies(reactor, resolver, over_https(policy_fetcher), records, tls_counts)
    dial = dialer(reactor, ehlo_name, limits.connect_seconds, timeouts)
    delivery = Delivery(
        reactor,
        limits,
        region,
        process,
        Queue(pool, bodies=messages.bodies),
        routes,
        Connector(reactor, resolver, dial, limits, sources=Sources(sources.addresses, state=state)),
        InPieces(messages),
        settling,
        sending,
        lambda: uuid7(unix(reactor)),
        shaping=shaping,
        policies=policies,
        tls_counts=tls_counts,
        pools=pools,
        consent=consent,
    )
    return delivery, SourceUpkeep(reactor, state, table, delivery.holds, resolver, sources.block_lists)
