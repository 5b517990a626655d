"""Standard Webhooks signatures: HMAC-SHA256 over `id.timestamp.body`, in `webhook-` and `svix-` headers. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence


def headers(message_id: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> Mapping[str, str]:
    """The headers for `body`, with one signature for each secret, so that receivers can verify with either."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    signatures = [base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets]
    values = {"id": message_id, "timestamp": str(timestamp), "signature": " ".join(f"v1,{each}" for each in signatures)}
    return {f"{family}-{name}": value for family in ("webhook", "svix") for name, value in values.items()}
