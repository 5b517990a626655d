"""Sends the lines of the audit log and its anchors to a SIEM, at least once each, those of an account in order.

Lines wait in the database: a batch is read, sent and then recorded, so nothing is lost while the SIEM is unreachable, and memory holds
one batch. One process sends to each destination at a time.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs

from mailsvc.audit.syslog import NotSent, SyslogServer, message
from mailsvc.clock import utc
from mailsvc.net.fetch import FetchError, HttpClient
from mailsvc.store.audit import anchors
from mailsvc.store.audit.targets import Target

BATCH = 200  # lines, of at most 4 KB each
BATCHES = 500  # in one round
LEASE = timedelta(minutes=5)  # beyond the longest timeout of a batch

Document = Mapping[str, Any]
Send = Callable[[Sequence[Document]], Awaitable[None]]


@attrs.define(eq=False)
class Forwarding:
    target: Target
    send: Send
    clock: Any

    async def forward(self) -> None:
        """Send everything that was not sent yet. Raises NotSent."""
        for _ in range(BATCHES):
            now = utc(self.clock)
            anchored = await self.target.take(now, now + LEASE)
            if anchored is None:
                return
            lines = await self.target.pending(BATCH)
            if lines:
                await self.send([line.document() for line in lines])
                await self.target.sent(lines)
                continue
            new = await anchors.after(self.target.pool, anchored)
            if not new:
                return
            await self.send([{**each.document(), "at": json.loads(each.body)["at"]} for each in new])
            await self.target.sent_anchor(new[-1].number)


def by_syslog(server: SyslogServer, host: str) -> Send:
    """`host`: the name of this machine."""

    async def send(documents: Sequence[Document]) -> None:
        await server.send([message(host, each["at"], each["type"], each) for each in documents])

    return send


def by_https(client: HttpClient, url: str, authorization: str | None, seconds: float) -> Send:
    headers = {"Content-Type": "application/x-ndjson"} | ({} if authorization is None else {"Authorization": authorization})

    async def send(documents: Sequence[Document]) -> None:
        body = b"".join(json.dumps(each).encode() + b"\n" for each in documents)
        try:
            reply = await client.fetch("POST", url, seconds=seconds, keep=1024, headers=headers, body=body)
        except FetchError as error:
            raise NotSent(str(error)) from None
        if not 200 <= reply.status <= 299:
            raise NotSent(f"It responded with status {reply.status}.")

    return send
