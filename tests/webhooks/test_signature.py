"""Signatures, as others verify them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest
import resend
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from mailsvc.webhooks.signature import headers

NEW, OLD = b"n" * 32, b"o" * 24


def shown(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


def now() -> int:
    return int(datetime.now(UTC).timestamp())


@given(st.text(st.characters(exclude_categories=["Cs"])), st.binary(min_size=24, max_size=64))
def test_both_libraries_verify(text: str, secret: bytes) -> None:
    body = json.dumps(text, ensure_ascii=False)
    sent = headers("msg_1", now(), body.encode(), [secret])
    named = {name: sent[f"svix-{name}"] for name in ("id", "timestamp", "signature")}
    resend.Webhooks.verify({"payload": body, "headers": named, "webhook_secret": shown(secret)})  # type: ignore[typeddict-item]
    verified = Webhook(shown(secret))
    sign = verified.sign(sent["webhook-id"], datetime.fromtimestamp(int(sent["webhook-timestamp"]), UTC), body)
    assert sign == sent["webhook-signature"] == sent["svix-signature"]


def test_either_secret_is_good_after_a_rotation() -> None:
    sent = dict(headers("msg_1", now(), b"{}", [NEW, OLD]))
    for secret in (NEW, OLD):
        Webhook(shown(secret)).verify("{}", sent)
    with pytest.raises(WebhookVerificationError):
        Webhook(shown(b"x" * 32)).verify("{}", sent)
    with pytest.raises(WebhookVerificationError):
        Webhook(shown(NEW)).verify("{ }", sent)


def test_an_old_timestamp_is_refused() -> None:
    for seconds in (-310, 310):
        with pytest.raises(WebhookVerificationError):
            Webhook(shown(NEW)).verify("{}", dict(headers("msg_1", now() + seconds, b"{}", [NEW])))
