"""Fetching an MTA-STS policy file (RFC 8461 §3.3): over HTTPS with a valid certificate, without redirects, from public addresses only."""

from __future__ import annotations

from mailsvc.delivery.connection.mta_sts import Fetch, NotFetched
from mailsvc.mail.authentication.mta_sts import MAX_SIZE
from mailsvc.net.fetch import CertificateError, Fetcher, FetchError

_SECONDS = 20.0  # 8461 §3.3 allows a minute, but the first mail waits for it


def over_https(fetcher: Fetcher) -> Fetch:
    async def fetch(url: str) -> bytes:
        try:
            reply = await fetcher.fetch("GET", url, seconds=_SECONDS, keep=MAX_SIZE + 1)
        except CertificateError as error:
            raise NotFetched(str(error), "sts-webpki-invalid") from None
        except FetchError as error:
            raise NotFetched(str(error)) from None
        if reply.status != 200:
            raise NotFetched(f"the answer was HTTP status {reply.status}")
        kind = (reply.header("content-type") or "text/plain").partition(";")[0].strip().lower()
        if kind != "text/plain":
            raise NotFetched(f"the answer is {kind}, not text/plain")
        return bytes(reply.body)

    return fetch
