"""API keys: who a caller is. Of a key only its SHA-256 is stored."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import attrs

Permission = Literal["full_access", "sending_access"]


@attrs.frozen
class Caller:
    """An account, seen through the key that it called with. `domain_id`: the only domain that the key may send from."""

    account_id: UUID
    key_id: UUID
    permission: Permission
    domain_id: UUID | None
    rate_limit: int | None
    suspended: bool = False
