"""Starts the sandbox: its port, the verification of DKIM signatures, and the sender of its reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.offload import InThread
from mailsvc.sandbox.inbox import ReadReturnPath, SandboxInbox, listener
from mailsvc.sandbox.report_sender import ReportSender
from mailsvc.sandbox.verdict import verdicts
from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.store.mail.sandbox import Sandbox

HOST = "localhost"


def sandbox(
    reactor: Any,
    opened: Opened,
    store: Sandbox,
    read: ReadReturnPath,
    offload: InThread,
    return_port: Callable[[], int | None],
) -> ServerFactory:
    """The factory of the sandbox's connections. `return_port` returns the local port that accepts mail to return paths."""
    reports = ReportSender(reactor, return_port)
    inbox = SandboxInbox(store, read, partial(verdicts, published=store.published, offload=offload), reactor, reports)
    connections = ServerFactory(listener(HOST), inbox.open_session, reactor)
    opened.add("the sandbox's reports", reports.stop)
    opened.add("the sandbox's sessions", connections.stop)
    return connections
