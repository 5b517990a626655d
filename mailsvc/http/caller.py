"""Who calls: the key in the Authorization header, and which endpoints it opens.

A key that is not known is answered 403 `invalid_api_key`, not 401: it is the one pair of status and name for this case that
the libraries' exception tables have. A request without a key is 401.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

from twisted.web.http_headers import Headers

from mailsvc.http import problem

_SCHEME = re.compile(rb"bearer(?= |\Z) *", re.IGNORECASE)  # 9110 §11.1: schemes have no case
_TOKEN = re.compile(rb"[A-Za-z0-9\-._~+/]{1,256}=*\Z")  # 6750 §2.1

# What a sending key may call. The three aliases of /emails are sent by some libraries.
SENDING = frozenset({b"/emails", b"/email", b"/emails/sending", b"/email/sending", b"/emails/batch"})
# What every key of the account may call, besides.
OPEN = re.compile(rb"/sandbox(/|\Z)")
# What anybody may read: what is no secret, and what its link itself opens.
PUBLIC = re.compile(rb"/openapi\.json\Z|/shared\Z|/emails/[^/]+/attachments/[^/]+/download\Z")


class Caller(Protocol):
    """An API key and its account; store/people/api_keys has the real one."""

    @property
    def account_id(self) -> UUID: ...
    @property
    def key_id(self) -> UUID | None: ...
    @property
    def permission(self) -> str: ...
    @property
    def domain_id(self) -> UUID | None: ...
    @property
    def rate_limit(self) -> int | None: ...
    @property
    def suspended(self) -> bool: ...
    @property
    def plan(self) -> str | None: ...


class Keys(Protocol):
    def find(self, hash: bytes) -> Awaitable[Caller | None]: ...


def bearer(headers: Headers, well_formed: Callable[[str], bool]) -> bytes:
    """The key that a request carries."""
    values = headers.getRawHeaders(b"authorization") or [b""]
    scheme = _SCHEME.match(values[0])
    token = values[0][scheme.end() :] if scheme else b""
    if not token:
        raise problem.missing_key()
    if len(values) > 1 or not _TOKEN.match(token) or not well_formed(token.decode()):
        raise problem.invalid_key()
    return token


async def find(keys: Keys, token: bytes) -> Caller:
    caller = await keys.find(hashlib.sha256(token).digest())
    if caller is None:
        raise problem.invalid_key()
    if caller.suspended:
        raise problem.suspended_key()
    return caller


def opens(caller: Caller, method: bytes, path: bytes) -> bool:
    """Whether the key opens this endpoint."""
    return caller.permission == "full_access" or (method == b"POST" and path in SENDING) or OPEN.match(path) is not None
