"""A mail server of another make (aiosmtpd) on loopback that remembers what it received."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import attrs
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP as Server
from aiosmtpd.smtp import Envelope, Session

_MESSAGE_ID = re.compile(rb"^Message-ID:\s*(\S+)", re.IGNORECASE | re.MULTILINE)


@attrs.frozen
class Received:
    """One delivery: the envelope and the bytes, with CRLF."""

    sender: str
    recipients: tuple[str, ...]
    raw: bytes

    @property
    def message_id(self) -> str:
        found = _MESSAGE_ID.search(self.raw)
        assert found is not None
        return found[1].decode()

    @property
    def message(self) -> EmailMessage:
        parsed = message_from_bytes(self.raw, policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        return parsed


class Sink(Controller):
    """`received` grows with every mail; `refuse` maps an address to the reply that its RCPT gets instead."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.received: list[Received] = []
        self.refuse: dict[str, str] = {}
        self.arrived = threading.Condition()
        self.open = 0
        self.most_open = 0
        super().__init__(self, hostname=address, port=port)

    def factory(self) -> Server:
        sink = self

        class Counting(Server):
            """Counts the connections that are open at once."""

            def connection_made(self, transport: Any) -> None:
                sink.open += 1
                sink.most_open = max(sink.most_open, sink.open)
                super().connection_made(transport)

            def connection_lost(self, error: Exception | None) -> None:
                sink.open -= 1
                super().connection_lost(error)

        return Counting(self, data_size_limit=64 * 2**20, enable_SMTPUTF8=True, ident="sink")

    async def handle_RCPT(self, server: Server, session: Session, envelope: Envelope, address: str, options: list[str]) -> str:
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server: Server, session: Session, envelope: Envelope) -> str:
        content = envelope.original_content
        assert content is not None
        with self.arrived:
            self.received.append(Received(envelope.mail_from or "", tuple(envelope.rcpt_tos), content))
            self.arrived.notify_all()
        return "250 2.0.0 Ok"

    def wait_until(self, enough: Callable[[list[Received]], bool], seconds: float) -> None:
        """Until what came is `enough`; an AssertionError when it is not by then."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: enough(self.received), seconds), f"not in {seconds} s; {len(self.received)} mails came"

    def having(self, text: str, count: int = 1, seconds: float = 60) -> list[Received]:
        """The mails with `text` in them, once there are so many; an AssertionError when there are not by then."""

        def found(mails: list[Received]) -> list[Received]:
            return [mail for mail in mails if text.encode() in mail.raw]

        self.wait_until(lambda mails: len(found(mails)) >= count, seconds)
        return found(self.received)

    def counts(self) -> Counter[str]:
        """How often each Message-ID came."""
        with self.arrived:
            return Counter(mail.message_id for mail in self.received)
