"""The test mail to the operator: over the API of the running daemon, until the recipient's server has answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import treq
from twisted.internet.error import ConnectError
from twisted.internet.task import deferLater
from twisted.web.client import Agent, ResponseFailed

from mailsvc.accounts.onboarding import Customers
from mailsvc.clock import utc
from mailsvc.monitoring.doctor import Finding
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import Domain
from mailsvc.store.people.api_keys import described
from mailsvc.store.people.audit import by_operator

WAIT = 60.0  # seconds for the recipient's server
_POLL = 0.5
_TIMEOUT = 10.0  # of a request
_CHECK = "test mail"
_TEXT = "mailsvc on {host} sent this email when it was set up.\n\nMail from {domain} is signed and delivered.\n"
_UNREACHABLE = (ConnectError, ResponseFailed, OSError)


def api(settings: Settings) -> str:
    """The URL of the API: on this machine if it listens on a TCP port."""
    for endpoint in settings.http.listen:
        kind, port, *_ = [*endpoint.split(":"), ""]
        if kind == "tcp" and port.isdecimal():
            return f"http://127.0.0.1:{port}"
    return settings.base_url or ""


async def ready(reactor: Any, settings: Settings, seconds: float) -> bool:
    """Whether the daemon is ready, within so many seconds."""
    until = reactor.seconds() + seconds
    while True:
        try:
            answer = await treq.get(f"{api(settings)}/readyz", agent=_agent(reactor), timeout=_TIMEOUT)
            await treq.content(answer)
            if answer.code == 200:
                return True
        except _UNREACHABLE:
            pass
        if reactor.seconds() >= until:
            return False
        await deferLater(reactor, _POLL)


async def send(reactor: Any, settings: Settings, customers: Customers, domain: Domain, operator: str) -> Finding:
    """Sends the mail with a key that exists only for it, and follows it."""
    if domain.missing is not None:
        return Finding(_CHECK, "warning", f"Not sent: {domain.missing}", "Publish the DNS records, then run `mailsvc setup` again.")
    until = utc(reactor) + timedelta(minutes=10)
    name = "mailsvc setup"
    created = by_operator(domain.account_id, "key created", described(name, "full_access", None, until))
    key_id, token = await customers.keys.create(domain.account_id, name, "full_access", None, [created], expires_at=until)
    try:
        return await _sent(reactor, settings, domain, operator, token)
    except _UNREACHABLE as error:
        return Finding(_CHECK, "warning", f"Not sent: the API cannot be reached ({error}).", "See `journalctl -u mailsvc`.")
    finally:
        await customers.keys.revoke(domain.account_id, key_id, [by_operator(domain.account_id, "key revoked", f"{name} ({token[:9]}…)")])


async def _sent(reactor: Any, settings: Settings, domain: Domain, operator: str, token: str) -> Finding:
    text = _TEXT.format(host=settings.delivery.ehlo_name, domain=domain.name)
    mail = {"from": settings.sender, "to": [operator], "subject": "mailsvc is set up", "text": text}
    status, answer = await _call(reactor, settings, token, "POST", "/emails", mail)
    if status != 200:
        return Finding(_CHECK, "error", f"Not accepted: {answer.get('message', status)}", "Fix the reported error, then run this again.")
    until = reactor.seconds() + WAIT
    while reactor.seconds() < until:
        _, email = await _call(reactor, settings, token, "GET", f"/emails/{answer['id']}")
        if email.get("last_event") == "delivered":
            return Finding(
                _CHECK, "ok", f"The mail server of {operator} accepted it.", "Look whether it is in the inbox, and not in the spam folder."
            )
        if email.get("last_event") in ("bounced", "failed", "suppressed"):
            return Finding(_CHECK, "error", f"It was not delivered to {operator}.", f"`mailsvc explain {answer['id']}` says why.")
        await deferLater(reactor, _POLL)
    return Finding(_CHECK, "warning", f"It is still queued for {operator}.", f"`mailsvc explain {answer['id']}` says why.")


async def _call(reactor: Any, settings: Settings, token: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    headers: dict[str | bytes, str | bytes] = {"Authorization": f"Bearer {token}", "User-Agent": "mailsvc-setup"}
    given = {} if body is None else {"json": body}
    answer = await treq.request(method, api(settings) + path, headers=headers, agent=_agent(reactor), timeout=_TIMEOUT, **given)
    return answer.code, await treq.json_content(answer)


def _agent(reactor: Any) -> Any:
    return Agent(reactor, connectTimeout=_TIMEOUT)
