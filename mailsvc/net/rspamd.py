"""Rspamd's HTTP protocol: the request for a message, and what the response says.

https://docs.rspamd.com/developers/protocol. What follows from a verdict: content_filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from mailsvc.net.fetch import FetchError, HttpClient

PATH = "/checkv2"
RESPONSE_MAX = 1024 * 1024  # bytes
_TEXT_MAX = 200  # characters of a message for the sender
_SYMBOLS = 3  # rules that are named, those with the highest scores


class FilterError(Exception):
    """Why there is no verdict: a sentence."""


@attrs.frozen
class Envelope:
    """What rspamd is told besides the message. `user`: the authenticated account; `ip`: the client's address, if known."""

    queue_id: str
    sender: str
    recipients: Sequence[str]
    user: str
    ip: str | None = None

    def headers(self) -> dict[str, Sequence[str]]:
        """The header fields of the request: one `Rcpt` for each recipient.

        Addresses that are not ASCII are left out: rspamd cannot read them and takes them for a sign of spam (BROKEN_HEADERS).
        """
        found: dict[str, Sequence[str]] = {
            "Queue-Id": [self.queue_id], "From": _ascii([self.sender]), "Rcpt": _ascii(self.recipients), "User": [self.user],
            "Content-Type": ["message/rfc822"],
        }  # fmt: skip
        return found if self.ip is None else {**found, "Ip": [self.ip]}


@attrs.frozen
class Verdict:
    """The recommended action and its score. `symbols`: the rules with the highest scores. `message`: for the sender, if there is one."""

    action: str
    score: float
    required: float
    symbols: tuple[str, ...] = ()
    message: str = ""


@attrs.frozen
class Rspamd:
    """A normal worker of rspamd at `url`, without a path."""

    client: HttpClient
    url: str
    seconds: float

    async def check(self, envelope: Envelope, message: bytes) -> Verdict:
        """Raises FilterError."""
        try:
            reply = await self.client.fetch(
                "POST", self.url + PATH, seconds=self.seconds, keep=RESPONSE_MAX, headers=envelope.headers(), body=message
            )
        except FetchError as error:
            raise FilterError(str(error)) from None
        if reply.status != 200:
            raise FilterError(f"It responded with status {reply.status}.")
        if not reply.whole:
            raise FilterError(f"Its response has more than {RESPONSE_MAX} bytes.")
        return read(reply.body)


def _ascii(addresses: Sequence[str]) -> list[str]:
    return [f"<{address}>" for address in addresses if address.isascii()]


def read(body: bytes) -> Verdict:
    """Reads a response. Raises FilterError."""
    try:
        found = orjson.loads(body)
        symbols, messages = found.get("symbols") or {}, found.get("messages") or {}
        scores = {_plain(name): _score(symbol) for name, symbol in symbols.items()}
        highest = sorted((name for name, score in scores.items() if score > 0), key=lambda name: (-scores[name], name))
        action, score, required = found["action"], float(found["score"]), float(found.get("required_score") or 0)
        if not isinstance(action, str):
            raise TypeError
        text = messages.get("smtp_message")
        return Verdict(action, score, required, tuple(highest[:_SYMBOLS]), _plain(text) if isinstance(text, str) else "")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        raise FilterError("Its response is not a result of rspamd.") from None


def _score(symbol: Mapping[str, Any]) -> float:
    return float(symbol.get("metric_score", symbol.get("score", 0)))


def _plain(text: str) -> str:
    """In ASCII on one line, shortened: it becomes part of an SMTP reply."""
    kept = "".join(character if " " <= character <= "~" else " " for character in text[: 4 * _TEXT_MAX])
    return " ".join(kept.split())[:_TEXT_MAX]
