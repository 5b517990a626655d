"""The public status page: the state of each component, from the service's own figures and the operator's incidents.

A page without customer data, the same for everybody, made once in EVERY seconds. It is served beside the API if `status.page` is on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import attrs
from jinja2 import Environment
from twisted.logger import Logger
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from mailsvc.clock import utc
from mailsvc.dashboard import safety
from mailsvc.http.resources.tracking.links import send
from mailsvc.store.console.incidents import Incident
from mailsvc.store.logs.figures import Reading
from mailsvc.store.postgres.errors import StoreError

EVERY = 30.0  # seconds between two readings, and how long others may keep the page
LATE = 300.0  # seconds that mail may be overdue
BEHIND = 60.0  # seconds that the event ledger may be behind
CSP = "default-src 'none'; style-src 'self'; font-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
STATES = {"good": "Operational", "maintenance": "Maintenance", "degraded": "Degraded", "down": "Down"}
_WORST = tuple(STATES)
_HEADERS = {name.encode(): value.encode() for name, value in safety.headers(secure=False, csp=CSP, cache="public, max-age=30").items()}
log = Logger()


@attrs.frozen
class Component:
    """`state`: one of STATES."""

    name: str
    state: str

    @property
    def shown(self) -> str:
        return STATES[self.state]


def components(names: Iterable[str], reading: Reading | None, incidents: Sequence[Incident]) -> list[Component]:
    """The state of each component; the worse one, if figures and incidents differ. `reading` None: the database cannot be read."""
    found = []
    for name in names:
        states = [one.impact for one in incidents if one.ended_at is None and name in one.components]
        found.append(Component(name, max([*states, _measured(name, reading)], key=_WORST.index)))
    return found


def _measured(name: str, reading: Reading | None) -> str:
    if reading is None:
        return "down"
    role = {"API": "http", "Dashboard": "http", "SMTP": "smtp", "Delivery": "delivery", "Webhooks": "webhooks"}[name]
    if not reading.processes.get(role):
        return "down"
    slow = {"Delivery": reading.overdue > LATE or reading.restored, "Webhooks": reading.ledger.seconds > BEHIND}
    return "degraded" if slow.get(name) else "good"


class StatusPage(Resource):
    """`read`: the figures. `recent`: the incidents."""

    isLeaf = True

    def __init__(
        self, names: Sequence[str], templates: Environment, clock: Any, read: Callable[[], Awaitable[Reading]],
        recent: Callable[[], Awaitable[Sequence[Incident]]],
    ) -> None:  # fmt: skip
        super().__init__()
        self._names, self._templates, self._clock, self._read, self._recent = names, templates, clock, read, recent
        self._incidents: Sequence[Incident] = ()
        self._page = b""

    async def refresh(self) -> None:
        """Make the page again. If the database cannot be read, everything is down and incidents stay as they were."""
        reading: Reading | None = None
        try:
            reading, self._incidents = await self._read(), await self._recent()
        except StoreError as error:
            log.warn("The status page has no figures: {reason}", reason=str(error))
        self._page = self._rendered(components(self._names, reading, self._incidents), utc(self._clock))

    def _rendered(self, found: Sequence[Component], now: datetime) -> bytes:
        worst = max((one.state for one in found), key=_WORST.index, default="good")
        page = self._templates.get_template("status.html").render(
            components=found, worst=worst, incidents=self._incidents, now=now, states=STATES
        )
        return page.encode("utf-8", "replace")

    def render(self, request: Any) -> int:
        if request.method not in (b"GET", b"HEAD") or request.path != b"/status":
            send(request, 404, b"")
        else:
            send(request, 200, self._page, b"text/html; charset=utf-8", _HEADERS)
        return int(NOT_DONE_YET)
