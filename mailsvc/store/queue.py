"""The queue: what waits, who may send it now, and which destinations are held back."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

import attrs

HoldState = Literal["backoff", "paused"]


@attrs.frozen
class Ready:
    """A destination that somebody could claim from: its most urgent kind of mail, and when the first of it is due."""

    destination: str
    bulk: bool
    next_at: datetime


@attrs.frozen
class Leased:
    """A recipient that the holder of the lease may send to now. `status` is what it was before: queued, delayed or uncertain."""

    account_id: UUID
    email_id: UUID
    recipient: int
    domain_id: UUID
    region: str
    address: str
    destination: str
    attempts: int
    status: str
    expires_at: datetime
    bulk: bool


@attrs.frozen
class Hold:
    """Why a destination as a whole takes no mail until `until`, and how many connections failed in a row."""

    state: HoldState
    reason: str
    until: datetime
    failures: int
