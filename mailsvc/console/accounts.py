"""Accounts: the list with rates, and one account with what operators can change. Neither subjects nor addresses of recipients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from mailsvc.accounts.quota import Quotas
from mailsvc.console.serving import HOME, ConsoleContext, ConsolePage, page
from mailsvc.dashboard.page import PageError, not_found
from mailsvc.store.console.accounts import AccountFigures, AccountRow
from mailsvc.store.people.abuse import AbuseStore
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.people.audit import Audit, Line
from mailsvc.store.people.quota import Quota
from mailsvc.store.queue.holds import FOREVER
from mailsvc.store.queue.operator import Operating

ACCOUNTS = f"{HOME}/accounts"
ONE = f"{ACCOUNTS}/<text>"
PAGE = 50
ENTRIES = 20
MOST = 1_000_000_000  # requests or recipients
NO_REASON = "Say why. The account’s admins can read it."
TOO_HIGH = 0.04, 0.0008  # bounces and complaints, as on the home page of the dashboard
_DONE = {
    "suspended": "Account suspended. It can’t send, and what is queued is still delivered.",
    "resumed": "Account resumed.",
    "plan": "Plan changed.",
    "limits": "Limits changed.",
    "trusted": "Account trusted. It has no limit as a new account and its mail is never held automatically.",
    "untrusted": "Account no longer trusted.",
    "paused": "Mail paused.",
    "released": "Mail released.",
    "same": "Nothing to change.",
}


@attrs.define(eq=False)
class AccountPages:
    """`rate_limit`: the default of requests per second. `wake`: looks at the queue now."""

    context: ConsoleContext
    accounts: Accounts
    figures: AccountFigures
    abuse: AbuseStore
    operating: Operating
    audit: Audit
    quotas: Quotas
    plans: Quota
    rate_limit: int
    wake: Callable[[], None]

    @page(ACCOUNTS)
    async def listed(self, request: ConsolePage) -> bytes:
        text, after = request.query("q")[:200], request.query("after")
        rows = await self.figures.search(text, PAGE + 1, int(after) if after.isdecimal() and len(after) < 10 else 0)
        more = rows[PAGE - 1].number if len(rows) > PAGE else None
        return request.render("accounts.html", rows=rows[:PAGE], more=more, q=text, too_high=TOO_HIGH)

    @page(ONE)
    async def shown(self, request: ConsolePage, text: str) -> bytes:
        account = await self._account(request, text)
        row = await self.figures.get(account.id)
        assert row is not None
        return await self._page(request, account, row)

    async def _page(self, request: ConsolePage, account: Account, row: AccountRow, status: int = 200, **values: object) -> bytes:
        shown: dict[str, object] = {"errors": {}, "done": _DONE.get(request.query("done"), "")}
        entries, _ = await self.audit.list(account.id, ENTRIES)
        return request.render(
            "account.html",
            status,
            account=account,
            row=row,
            has=await self.figures.possessions(account.id),
            usage=await self.quotas.usage(account.id, account.plan, account.ramp),
            plan=self.quotas.plan(account.plan),
            plans=self.quotas.plans,
            default_plan=self.quotas.default,
            rate_limit=self.rate_limit,
            entries=entries,
            too_high=TOO_HIGH,
            **shown | values,
        )

    # Changes. Each is written to the log of the account and to that of the installation, in its transaction.

    @page(f"{ONE}/suspend", "POST")
    async def suspend(self, request: ConsolePage, text: str) -> bytes:
        reason = _reason(request)
        if not reason:
            return await self._wrong(request, text, {"suspend": NO_REASON})
        return await self._changed(
            request, text, "suspended", "account suspended", reason, lambda one, lines: self.accounts.suspend(one.id, True, lines)
        )

    @page(f"{ONE}/resume", "POST")
    async def resume(self, request: ConsolePage, text: str) -> bytes:
        return await self._changed(
            request, text, "resumed", "account resumed", "", lambda one, lines: self.accounts.suspend(one.id, False, lines)
        )

    @page(f"{ONE}/plan", "POST")
    async def plan(self, request: ConsolePage, text: str) -> bytes:
        name = request.field("plan") or None
        if name is not None and name not in self.quotas.plans:
            raise PageError(422, "Unknown plan", "Choose one of the plans.")

        async def change(account: Account, lines: list[Line]) -> bool:
            if account.plan != name:
                uncounted = self.quotas.uncounted(account.plan, name, account.ramp)
                await self.plans.plan(account.id, name, self.context.now().timestamp(), lines, uncounted)
            return account.plan != name

        return await self._changed(request, text, "plan", "plan changed", name or "the default", change)

    @page(f"{ONE}/limits", "POST")
    async def limits(self, request: ConsolePage, text: str) -> bytes:
        rate, ramp, errors = await self._limits(request, text)
        if errors:
            return await self._wrong(request, text, errors)

        async def change(account: Account, lines: list[Line]) -> bool:
            if (account.rate_limit, account.ramp) == (rate, ramp):
                return False
            await self.figures.limit(account.id, rate, ramp, lines)
            return True

        daily = "no limit" if ramp is None else f"{ramp} recipients a day"
        said = f"{rate or 'the default number of'} requests a second, {daily} as a new account"
        return await self._changed(request, text, "limits", "limits changed", said, change)

    async def _limits(self, request: ConsolePage, text: str) -> tuple[int | None, int | None, dict[str, str]]:
        """Requests per second, recipients per day, and what is wrong by field."""
        account = await self._account(request, text)
        found = {"rate_limit": account.rate_limit, "ramp": account.ramp}
        errors = {}
        for name in found.keys() & request.form.keys():  # an empty field removes a limit, an absent one leaves it
            try:
                found[name] = _number(request.field(name))
            except ValueError:
                errors[name] = f"Enter a whole number between 1 and {MOST:,}, or nothing."
        if found["ramp"] is not None and account.trusted_at is not None:
            errors["ramp"] = "The account is trusted, so it has no such limit. Stop trusting it first."
        return found["rate_limit"], found["ramp"], errors

    @page(f"{ONE}/trust", "POST")
    async def trust(self, request: ConsolePage, text: str) -> bytes:
        trusted = request.field("trusted") == "on"

        async def change(account: Account, lines: list[Line]) -> bool:
            if (account.trusted_at is not None) == trusted:
                return False
            await self.abuse.trust(account.id, trusted, self.context.now(), lines)
            return True

        action = "account trusted" if trusted else "account no longer trusted"
        return await self._changed(request, text, "trusted" if trusted else "untrusted", action, "", change)

    @page(f"{ONE}/pause", "POST")
    async def pause(self, request: ConsolePage, text: str) -> bytes:
        reason = _reason(request)
        if not reason:
            return await self._wrong(request, text, {"pause": NO_REASON})
        why = f"Paused by the operator: {reason}."

        async def change(account: Account, lines: list[Line]) -> bool:
            await self.operating.pause_account(account.id, why, FOREVER, self.context.now(), lines)
            return True

        return await self._changed(request, text, "paused", "mail paused", why, change)

    @page(f"{ONE}/release", "POST")
    async def release(self, request: ConsolePage, text: str) -> bytes:
        async def change(account: Account, lines: list[Line]) -> bool:
            if await self.operating.pause_of(account.id, self.context.now()) is None:
                return False
            await self.operating.resume_account(account.id, self.context.now(), lines)
            return True

        return await self._changed(request, text, "released", "mail released", "", change)

    async def _changed(
        self, request: ConsolePage, text: str, done: str, action: str, subject: str,
        change: Callable[[Account, list[Line]], Awaitable[bool]],
    ) -> bytes:  # fmt: skip
        account = await self._account(request, text)
        lines = request.lines(action, subject, account.id, f"{account.name} ({account.number})")
        changed = await change(account, lines)
        self.wake()
        return request.redirect(f"{ACCOUNTS}/{account.id}", done=done if changed else "same")

    async def _wrong(self, request: ConsolePage, text: str, errors: dict[str, str]) -> bytes:
        """The page with what was entered, and what is wrong."""
        account = await self._account(request, text)
        row = await self.figures.get(account.id)
        assert row is not None
        return await self._page(request, account, row, 422, errors=errors)

    async def _account(self, request: ConsolePage, text: str) -> Account:
        account = await self.accounts.get(request.uuid(text, "account"))
        if account is None:
            raise not_found("account")
        return account


def _reason(request: ConsolePage) -> str:
    """Why something is done, which the account can read in its audit log."""
    return request.single_line("reason")[:300].rstrip(".")


def _number(entered: str) -> int | None:
    """Raises ValueError."""
    text = entered.replace(",", "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or not 1 <= int(text) <= MOST:
        raise ValueError
    return int(text)
