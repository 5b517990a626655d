"""SQL of store/queue/settle, which explains it."""

from __future__ import annotations

from mailsvc.store.events import suppressions
from mailsvc.store.mail import dsn_requests
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.queue.claims_sql import PLAN_ONCE_BY_INDEX, REGION_NOW
from mailsvc.store.sql import statement

_SETTLE = statement(
    "mailsvc.store.queue",
    "settle",
    insert_notices=dsn_requests.insertion("settled", "announced"),
    region_now=REGION_NOW,
    suppression_data=suppressions.data_of("b"),
)

SETTLE = Prepared("settle", ("json", "json"), _SETTLE, PLAN_ONCE_BY_INDEX)
