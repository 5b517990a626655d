"""The API key of a request, and which endpoints it permits.

An unknown key gets 403 `invalid_api_key`, not 401, because client libraries know no other status for this name. A request without a
key gets 401, and one for an account that has moved to another cell gets 421, with the name of the cell for a proxy that can pass it on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from twisted.web.http_headers import Headers

from mailsvc.http import problem
from mailsvc.store.people.api_keys import Caller, Keys

_SCHEME = re.compile(rb"bearer(?= |\Z) *", re.IGNORECASE)  # 9110 §11.1: schemes are case-insensitive
_TOKEN = re.compile(rb"[A-Za-z0-9\-._~+/]{1,256}=*\Z")  # 6750 §2.1

# What a key with sending access can call. Some client libraries use the three aliases of /emails.
SENDING = frozenset({b"/emails", b"/email", b"/emails/sending", b"/email/sending", b"/emails/batch"})
# What every key can call.
OPEN = re.compile(rb"/sandbox(/|\Z)|/cell\Z")
# What needs no key: the description, and links that contain a signed token.
PUBLIC = re.compile(rb"/openapi\.json\Z|/shared\Z|/emails/[^/]+/attachments/[^/]+/download\Z")


def bearer(headers: Headers, well_formed: Callable[[str], bool]) -> bytes:
    """The API key of a request."""
    values = headers.getRawHeaders(b"authorization") or [b""]
    scheme = _SCHEME.match(values[0])
    token = values[0][scheme.end() :] if scheme else b""
    if not token:
        raise problem.missing_key()
    if len(values) > 1 or not _TOKEN.match(token) or not well_formed(token.decode()):
        raise problem.invalid_key()
    return token


async def find(keys: Keys, token: bytes) -> Caller:
    hash = hashlib.sha256(token).digest()
    caller = await keys.find(hash)
    if caller is None:
        moved = await keys.moved(hash)
        if moved is None:
            raise problem.invalid_key()
        raise problem.unavailable() if moved.cell is None else problem.moved_key(moved.cell)
    if caller.suspended:
        raise problem.suspended_key()
    return caller


def permits(caller: Caller, method: bytes, path: bytes) -> bool:
    """Whether the key can call this endpoint."""
    return caller.permission == "full_access" or (method == b"POST" and path in SENDING) or OPEN.match(path) is not None
