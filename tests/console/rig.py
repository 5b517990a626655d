"""The console without a daemon: pages on a database, a fake clock, and browsers that keep cookies."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import attrs
import pyotp
from twisted.internet.defer import execute, succeed
from twisted.internet.task import Clock
from twisted.web.resource import Resource

from mailsvc.console.assembly import ConsoleAssembly
from mailsvc.monitoring.operator_commands import OperatorCommands
from mailsvc.monitoring.overview import Overview
from mailsvc.settings.console import Status
from mailsvc.settings.schema import Settings
from mailsvc.store.console.operators import Operators
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.operator import Operating
from mailsvc.wiring import provider_rules
from tests.dashboard.fixtures import ENCRYPTION, NOW, PASSWORD, Browser, Response
from tests.monitoring.test_overview import metrics_text

ANN = "ann@operator.example"
SECRET = b"12345678901234567890"


@attrs.define
class FakeMonitoring:
    """Figures of nothing."""

    text: bytes = attrs.field(factory=metrics_text)

    async def overview(self) -> Any:
        return Overview().shown(self.text, "Process 1 on here")


def in_reactor(work: Any) -> Any:
    return execute(work)


@attrs.define(eq=False)
class ConsoleRig:
    """`base_url` and `pages` are what browsers of the dashboard's tests use."""

    pool: Pool
    base_url: str = "http://localhost:8026"
    clock: Clock = attrs.field(factory=Clock)
    woken: list[str] = attrs.field(factory=list)
    pages: Resource = attrs.field(init=False)
    operators: Operators = attrs.field(init=False)
    accounts: Accounts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.clock.rightNow = NOW
        pool, settings = self.pool, Settings(base_url="http://localhost:8025", status=Status(components=("API", "Delivery")))
        self.operators, self.accounts = Operators(pool, self.clock, ENCRYPTION), Accounts(pool, self.clock)
        commands = OperatorCommands(Queue(pool), Operating(pool), settings.region, self.clock.seconds, self.accounts, lambda: None)
        database: Any = SimpleNamespace(pool=pool, encryption=ENCRYPTION)
        monitoring: Any = FakeMonitoring()
        self.pages = ConsoleAssembly(
            settings=settings, clock=self.clock, database=database, accounts=self.accounts, monitoring=monitoring, commands=commands,
            shaping=lambda: provider_rules(None), password_thread=lambda work: succeed(work()), blocking=in_reactor,
            notify=self.woken.append,
        ).console()  # fmt: skip

    def browser(self) -> Browser:
        rig: Any = self
        return Browser(rig)

    def code(self, secret: bytes = SECRET) -> str:
        return pyotp.TOTP(base64.b32encode(secret).decode()).at(self.clock.seconds())

    async def invited(self, email: str = ANN) -> str:
        """The path of the link for the set-up."""
        return f"/console/set-up?link={await self.operators.add(email, SECRET, [])}"

    async def set_up(self, email: str = ANN) -> Browser:
        """A browser of an operator who has just set up their sign-in."""
        browser, path = self.browser(), await self.invited(email)
        await browser.get(path)
        form = {"link": path.partition("link=")[2], "password": PASSWORD, "code": self.code()}
        assert (await browser.post("/console/set-up", form)).location == "/console"
        self.clock.advance(60)
        return browser

    async def sign_in(self, browser: Browser, email: str = ANN, password: str = PASSWORD, code: str | None = None) -> Response:
        await browser.get("/console/sign-in")
        return await browser.post("/console/sign-in", {"email": email, "password": password, "code": self.code() if code is None else code})

    async def account(self, name: str = "Acme") -> UUID:
        found: UUID = (await self.accounts.create(name, ramp=200)).id
        return found

    async def log(self, account_id: UUID) -> list[tuple[str, str, str]]:
        """Actor, action and subject of an audit log, oldest first."""
        rows = await self.pool.rows("SELECT actor, action, subject FROM audit_entries WHERE account_id = %s ORDER BY id", (account_id,))
        return [(actor, action, subject) for actor, action, subject in rows]
