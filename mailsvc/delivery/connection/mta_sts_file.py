"""Fetching an MTA-STS policy file (RFC 8461 §3.3): over HTTPS with a good certificate, from where the guard lets us, no redirects."""

from __future__ import annotations

from typing import Protocol

from mailsvc.delivery.connection.mta_sts import Fetch, NotFetched
from mailsvc.mail.authentication.mta_sts import MOST_OCTETS
from mailsvc.net.fetch import NoAnswer, Reply

_SECONDS = 20.0  # of the minute that 8461 §3.3 allows: mail waits for it, the first time


class Fetcher(Protocol):
    """fetch.Fetcher"""

    async def ask(self, method: str, url: str, *, seconds: float, keep: int) -> Reply: ...


def over_https(fetcher: Fetcher) -> Fetch:
    async def fetch(url: str) -> bytes:
        try:
            reply = await fetcher.ask("GET", url, seconds=_SECONDS, keep=MOST_OCTETS + 1)
        except NoAnswer as error:
            raise NotFetched(str(error)) from None
        if reply.status != 200:
            raise NotFetched(f"the answer was HTTP status {reply.status}")
        kind = (reply.header("content-type") or "text/plain").partition(";")[0].strip().lower()
        if kind != "text/plain":
            raise NotFetched(f"the answer is {kind}, not text/plain")
        return bytes(reply.body)

    return fetch
