"""Signing in to the console: a password and a code of an authenticator app, always both. Also the set-up of the two with a link.

The algorithms are those of the dashboard (dashboard/signin); users of the dashboard and operators have nothing in common.
"""

from __future__ import annotations

import attrs
import segno
from markupsafe import Markup

from mailsvc.clock import unix
from mailsvc.console.serving import HOME, SESSION, SET_UP, SIGN_IN, ConsoleContext, ConsolePage, page
from mailsvc.dashboard.page import PageError
from mailsvc.dashboard.signin import second_factor
from mailsvc.dashboard.signin.password import Busy, Passwords
from mailsvc.dashboard.signin.throttle import Subject, Throttle
from mailsvc.domains.names import typed_address
from mailsvc.store.console.operators import LONGEST, Operator, Operators
from mailsvc.store.people.audit import INSTALLATION, Line, by_named_operator
from mailsvc.units import span

WRONG = "Incorrect email, password or code."
BUSY = PageError(503, "Temporarily unavailable", "Too many sign-ins right now. Try again in a moment.")


@attrs.define(eq=False)
class SignIn:
    context: ConsoleContext
    operators: Operators
    passwords: Passwords
    throttle: Throttle

    @page(SIGN_IN, access="public")
    async def form(self, request: ConsolePage) -> bytes:
        return request.redirect(HOME) if request.session is not None else request.render("signin.html", errors={}, email="")

    @page(SIGN_IN, "POST", access="public")
    async def sign_in(self, request: ConsolePage) -> bytes:
        email = typed_address(request.field("email"))
        subjects: list[Subject] = [("console", email), ("address", f"console {request.address}")]
        seconds = await self.throttle.attempt(subjects)
        if seconds > 0:
            errors = {"code": f"Too many attempts. Try again in {span(max(seconds, 2))}."}
            return request.render("signin.html", 429, errors=errors, email=email)
        operator = await self.operators.named(email)
        if not await self._both(request, operator) or operator is None:
            await self.throttle.failed(subjects)
            await self._failed(request, email if operator is not None else "unknown address")
            return request.render("signin.html", 422, errors={"code": WRONG}, email=email)
        await self.throttle.passed(subjects)
        return await self._begin(request, operator)

    async def _both(self, request: ConsolePage, operator: Operator | None) -> bool:
        """Whether password and code are right. Uses up the code. Takes the same time for an unknown address."""
        try:
            right = await self.passwords.verify(request.form.get("password", ""), operator.password if operator else None)
        except Busy:
            raise BUSY from None
        if operator is None:
            return False
        step = self._step(request, operator)
        return right and step is not None and await self.operators.take_code(operator.id, step)

    def _step(self, request: ConsolePage, operator: Operator) -> int | None:
        code = request.field("code").replace(" ", "")
        return second_factor.step_of(operator.totp, code, unix(self.context.clock)) if code.isdecimal() else None

    async def _failed(self, request: ConsolePage, who: str) -> None:
        line = Line(INSTALLATION, None, None, who, request.address, "console sign-in failed")
        await self.operators.record([line])

    async def _begin(self, request: ConsolePage, operator: Operator) -> bytes:
        lines = by_named_operator(operator.email, request.address, INSTALLATION, "console opened")
        secret = await self.operators.begin(operator.id, request.address, lines)
        request.set_cookie(SESSION, secret, int(LONGEST.total_seconds()))
        return request.redirect(HOME)

    @page(f"{SIGN_IN}/out", "POST")
    async def out(self, request: ConsolePage) -> bytes:
        await self.operators.end(request.operator.hash, request.lines("console closed"))
        request.set_cookie(SESSION, "", 0)
        return request.redirect(SIGN_IN)

    # The set-up, with the link of `mailsvc operator add`

    @page(SET_UP, access="public")
    async def set_up_form(self, request: ConsolePage) -> bytes:
        return self._shown(request, await self._invited(request.query("link")), request.query("link"))

    @page(SET_UP, "POST", access="public")
    async def set_up(self, request: ConsolePage) -> bytes:
        """Choose a password and confirm the app with its first code."""
        link, password = request.field("link"), request.form.get("password", "")
        operator = await self._invited(link)
        if await self.throttle.attempt([("choosing", str(operator.id))]) > 0:
            return self._shown(request, operator, link, {"code": "Too many attempts. Try again in some minutes."}, 429)
        try:
            problem = await self.passwords.problem(password, operator.email)
            if problem is not None:
                return self._shown(request, operator, link, {"password": problem}, 422)
            step = self._step(request, operator)
            if step is None:
                return self._shown(request, operator, link, {"code": "Incorrect code. Enter the code the app shows now."}, 422)
            hashed = await self.passwords.hash(password)
        except Busy:
            raise BUSY from None
        lines = by_named_operator(operator.email, request.address, INSTALLATION, "operator set up")
        if not await self.operators.set_up(link, hashed, step, lines):
            raise _expired()
        return await self._begin(request, operator)

    async def _invited(self, link: str) -> Operator:
        operator = await self.operators.of_link(link)
        if operator is None:
            raise _expired()
        return operator

    def _shown(self, request: ConsolePage, operator: Operator, link: str, errors: dict[str, str] | None = None, status: int = 200) -> bytes:
        uri = second_factor.uri(operator.totp, operator.email, "mailsvc console")
        qr = Markup(segno.make(uri, error="m").svg_inline(scale=4, border=0))  # noqa: S704  made of squares
        secret = second_factor.shown(operator.totp)
        return request.render("set-up.html", status, email=operator.email, link=link, qr=qr, secret=secret, errors=errors or {})


def _expired() -> PageError:
    return PageError(410, "Link expired", "This link was used or has expired. `mailsvc operator add` makes a new one.")
