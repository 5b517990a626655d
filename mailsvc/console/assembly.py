"""Builds the console and the status page with what they need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
from markupsafe import Markup
from twisted.web.resource import Resource

from mailsvc.accounts.quota import Quotas
from mailsvc.clock import unix
from mailsvc.console.accounts import AccountPages
from mailsvc.console.cells import CellPages
from mailsvc.console.incidents import IncidentPages
from mailsvc.console.listener import ConsoleSite
from mailsvc.console.overview import OverviewPages
from mailsvc.console.queue import QueuePages, SourcePages
from mailsvc.console.serving import CommonPages, Console, ConsoleContext
from mailsvc.console.signin import SignIn
from mailsvc.console.status import EVERY, StatusPage
from mailsvc.dashboard import formatting
from mailsvc.dashboard.files import address
from mailsvc.dashboard.signin.password import Passwords
from mailsvc.dashboard.signin.throttle import Throttle
from mailsvc.delivery.shaping import Shaping
from mailsvc.monitoring import overview
from mailsvc.monitoring.listener import private
from mailsvc.monitoring.operator_commands import OperatorCommands
from mailsvc.monitoring.readiness import Monitoring
from mailsvc.runtime.database import Database
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.offload import InThread
from mailsvc.runtime.polling import every
from mailsvc.settings import plans
from mailsvc.settings.schema import Settings
from mailsvc.store.cells.nodes import Cluster
from mailsvc.store.console.accounts import AccountFigures
from mailsvc.store.console.incidents import Incidents
from mailsvc.store.console.operators import Operators
from mailsvc.store.people.abuse import AbuseStore
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import Audit
from mailsvc.store.people.quota import Quota
from mailsvc.store.people.sign_in_attempts import SignInAttempts
from mailsvc.store.queue.operator import Operating
from mailsvc.store.queue.sources import SourceTable

# Path below /console, name, icon.
NAVIGATION = (
    ("", "Overview", "home"),
    ("/accounts", "Accounts", "people"),
    ("/queue", "Queue", "inbox"),
    ("/sources", "Sources", "globe"),
    ("/cells", "Cells", "list"),
    ("/incidents", "Status page", "chart"),
    ("/audit", "Audit log", "list"),
)
_TEMPLATES = Path(__file__).parent / "templates"


@attrs.define(eq=False, kw_only=True)
class ConsoleAssembly:
    """What the console needs. `commands`: those of `mailsvc queue`. `password_thread`: hashes passwords. `blocking`: asks
    the nodes of a cluster."""

    settings: Settings
    clock: Any
    database: Database
    accounts: Accounts
    monitoring: Monitoring
    commands: OperatorCommands
    shaping: Callable[[], Shaping]
    password_thread: InThread
    blocking: InThread
    notify: Callable[[str], None]

    async def open(self, listen: Callable[[str, Sequence[str], Any], Awaitable[object]]) -> None:
        """Listen, if the settings say where."""
        endpoints = [private(text) for text in self.settings.console.listen]
        if endpoints:
            await listen("console.listen", endpoints, ConsoleSite(self.console(), self.clock))

    def console(self) -> Console:
        settings, pool, clock, encryption = self.settings, self.database.pool, self.clock, self.database.encryption
        operators, audit, stored = Operators(pool, clock, encryption), Audit(pool, clock), Quota(pool)
        context = ConsoleContext(
            operators=operators, templates=environment(), secrets=partial(encryption.secrets_for, "console"), url=settings.console.url,
            clock=clock, region=settings.region, has_status_page=settings.status.page,
        )  # fmt: skip
        throttle = Throttle(SignInAttempts(pool, clock), partial(unix, clock), lambda: encryption.secrets_for("attempts")[0])
        passwords = Passwords(self.password_thread, ("mailsvc", urlsplit(settings.console.url).hostname or ""))
        quotas = Quotas(stored, clock, plans.load(settings.plans), settings.plans.default)
        sections = (
            CommonPages(),
            SignIn(context, operators, passwords, throttle),
            OverviewPages(context, self.monitoring, audit),
            AccountPages(
                context, self.accounts, AccountFigures(pool, clock), AbuseStore(pool), Operating(pool), audit, quotas, stored,
                settings.http.rate_limit, partial(self.notify, "queue"),
            ),
            QueuePages(context, self.commands),
            SourcePages(context, SourceTable(pool, settings.region), self.shaping()),
            CellPages(context, cluster_of(settings), settings.database.cell, self.blocking),
            IncidentPages(context, Incidents(pool, clock), settings.status.components),
        )  # fmt: skip
        return Console(context, sections)


def cluster_of(settings: Settings) -> Cluster | None:
    """The cluster with the process's cell."""
    database = settings.database
    return None if database.url is None or database.cell is None else Cluster(database.url, database.node_regions)


def environment() -> Any:
    """The templates of the console, which come before those of the dashboard with the same name."""
    templates = formatting.environment(_TEMPLATES, navigation=NAVIGATION, static=address)
    templates.filters |= {"figure": overview.number, "seconds": overview.seconds, "commands": commands}
    return templates


def commands(text: str) -> Markup:
    """A sentence in which commands are marked with backticks, as in the logs."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))


async def status_page(settings: Settings, clock: Any, database: Database, monitoring: Monitoring, opened: Opened) -> Mapping[str, Resource]:
    """The public status page by the first segment of its path; nothing unless it is switched on."""
    if not settings.status.page:
        return {}
    page = StatusPage(settings.status.components, environment(), clock, monitoring.figures.read, Incidents(database.pool, clock).recent)
    await page.refresh()
    opened.add("status page", every(clock, EVERY, "making the status page", page.refresh))
    return {"status": page}
