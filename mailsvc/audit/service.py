"""Starts what the settings of the audit log require: anchors, their file, and external destinations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from mailsvc.audit.forwarding import Forwarding, Send, by_https, by_syslog
from mailsvc.audit.signing import AnchorFile, BadKey, SigningKey
from mailsvc.audit.syslog import NotSent, SyslogServer
from mailsvc.clock import held, utc
from mailsvc.net import address_guard
from mailsvc.net.dns import Resolver
from mailsvc.net.fetch import Fetcher
from mailsvc.net.urls import Rules
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import EXPECTED, every
from mailsvc.settings.audit import Audit
from mailsvc.settings.reader import SettingsError
from mailsvc.store.audit import anchors
from mailsvc.store.audit.targets import Target
from mailsvc.store.postgres.pool import Pool

EVERY = 10.0  # seconds between two looks for new lines
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def start(rules: Audit, pool: Pool, reactor: Any, resolver: Resolver, host: str, opened: Opened, in_thread: InThread) -> None:
    """`host`: the name of this machine. Raises SettingsError."""
    if rules.signing_key is not None:
        key, pause = read_key(rules), timedelta(seconds=rules.anchor_seconds)
        if key.private is None:
            raise SettingsError(f"The setting audit.signing_key is {rules.signing_key}: it has no private key.")

        async def anchor() -> None:
            if not held(reactor):
                await anchors.make(pool, utc(reactor), pause, key.sign)

        opened.add("anchors of the audit log", every(reactor, min(rules.anchor_seconds, 60.0), "anchoring the audit log", anchor))
    if rules.anchor_file is not None:
        write = partial(write_anchors, pool, AnchorFile(rules.anchor_file), in_thread)
        opened.add("the file of anchors", every(reactor, EVERY, "writing anchors of the audit log", write, expected=(*EXPECTED, OSError)))
    for name, send in _destinations(rules, reactor, resolver, host).items():
        forwarding = Forwarding(Target(pool, name, uuid4()), send, reactor)
        loop = every(reactor, EVERY, f"sending the audit log by {name}", forwarding.forward, expected=(*EXPECTED, NotSent))
        opened.add(f"the audit log by {name}", loop)


def read_key(rules: Audit) -> SigningKey:
    """Raises SettingsError."""
    assert rules.signing_key is not None
    try:
        return SigningKey.read(rules.signing_key)
    except BadKey as error:
        raise SettingsError(f"The setting audit.signing_key cannot be used: {error}") from None


async def write_anchors(pool: Pool, file: AnchorFile, in_thread: InThread) -> None:
    """Append the anchors that are not in the file yet."""
    last = await in_thread(lambda: file.append(()))
    while new := await anchors.after(pool, last):
        last = await in_thread(partial(file.append, new))


def _destinations(rules: Audit, reactor: Any, resolver: Resolver, host: str) -> dict[str, Send]:
    found: dict[str, Send] = {}
    if rules.syslog is not None:
        name, _, port = rules.syslog.rpartition(":")
        try:
            trust = None if rules.syslog_ca is None else rules.syslog_ca.read_bytes()
        except OSError as error:
            raise SettingsError(f"The file {rules.syslog_ca} (audit.syslog_ca) cannot be read: {error.strerror}.") from None
        found["syslog"] = by_syslog(SyslogServer(reactor, name, int(port), rules.seconds, trust), host)
    if rules.url is not None:
        everywhere = Rules(frozenset(), False, address_guard.networks(("0.0.0.0/0", "::/0")))
        found["https"] = by_https(Fetcher(reactor, resolver, everywhere), rules.url, rules.authorization, rules.seconds)
    return found
