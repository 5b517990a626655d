"""The sandbox in one piece: the inbox, what checks its mail and what carries its reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mailsvc.runtime.lifecycle import Opened
from mailsvc.sandbox.inbox import ReadReturnPath, SandboxInbox, listener
from mailsvc.sandbox.postbag import Postbag
from mailsvc.sandbox.verdict import Offload, verdicts
from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.store.mail.sandbox import Sandbox

HOST = "localhost"


def sandbox(
    reactor: Any,
    opened: Opened,
    shelf: Sandbox,
    read: ReadReturnPath,
    offload: Offload,
    back: Callable[[], int | None],
) -> ServerFactory:
    """What answers its connections. `back` tells the port, on this machine, where mail for return paths comes in."""
    postbag = Postbag(reactor, back)
    inbox = SandboxInbox(shelf, read, partial(verdicts, published=shelf.published, offload=offload), reactor, postbag)
    receivers = ServerFactory(listener(HOST), inbox.welcome, reactor)
    opened.add("the sandbox's reports", postbag.stop)
    opened.add("the sandbox's sessions", receivers.stop)
    return receivers
