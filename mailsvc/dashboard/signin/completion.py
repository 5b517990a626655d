"""What all ways of signing in share: sessions and cookies, throttling, password checks, audit entries, security notices."""

from __future__ import annotations

import hmac
import secrets
from datetime import UTC, datetime
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.dashboard import safety
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.formatting import stamp
from mailsvc.dashboard.page import NEVER, SESSION, SIGN_IN, PageError, PageRequest
from mailsvc.dashboard.signin import mails, tickets
from mailsvc.dashboard.signin.mails import Mailer, SignInEmail
from mailsvc.dashboard.signin.password import Passwords
from mailsvc.dashboard.signin.providers import AuthorizationRequest, Claims
from mailsvc.dashboard.signin.throttle import Subject, Throttle
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.people.audit import Line
from mailsvc.store.people.sign_in_attempts import SignInAttempts
from mailsvc.store.people.users import User
from mailsvc.units import span

DEVICE = "mailsvc-device"
YEAR = 365 * 86400
STATE_EXPIRED = PageError(
    400, "Sign-in expired", "This sign-in was started in another browser, was already used, or took longer than 10 minutes."
)

CHANGED = PageError(409, "Not signed in", "Your password was changed while you signed in. Sign in with the new one.")


@attrs.frozen
class Refused:
    """A failed or throttled attempt: the response status and the message for the field."""

    status: int
    message: str


@attrs.define(eq=False)
class Authentication:
    """Shared by the sign-in and settings pages. `mailer`: None if the service cannot send emails."""

    context: PageContext
    passwords: Passwords
    throttle: Throttle
    attempts: SignInAttempts
    mailer: Mailer | None

    async def sign_in(
        self, request: PageRequest, user: User, next_: str, *, proof: str, both: bool = False, proved_at: datetime | None = None,
        single_sign_on: UUID | None = None,
    ) -> bytes:  # fmt: skip
        """Begin a session and redirect to `next_`, or to the second factor if one is required.

        `both`: the proof includes the second factor. `proved_at`: when the user proved their identity (now if None). `single_sign_on`: the
        account whose provider was used. A previous session of this browser ends. Refused if an account of theirs requires its provider.
        """
        half = request.session if request.session is not None and request.session.stage == "password" else None
        if single_sign_on is None and half is not None and half.user_id == user.id:
            single_sign_on = half.single_sign_on  # this is the second factor
        required = await self.context.single_sign_ons.required_of(user.id)
        if required is not None and required.account_id != single_sign_on:
            await self.context.audit.write(audit_entry(request, user, "sign-in refused", f"{proof}: single sign-on is required"))
            return request.render("signin/required.html", 403, email=user.email, next=safety.inside(next_))
        stage = "password" if user.second_factor and not both else "whole"
        await self.begin_session(request, user, stage, proved_at, single_sign_on)
        if stage == "whole":
            await self.record_sign_in(request, user, proof)
            return request.redirect(safety.inside(next_))
        return request.redirect(f"{SIGN_IN}/code", next=safety.inside(next_))

    async def begin_session(
        self, request: PageRequest, user: User, stage: str, proved_at: datetime | None = None, single_sign_on: UUID | None = None
    ) -> None:
        """Begin a session with a new secret. It shows the account that was signed in to, or else the last one. Raises PageError."""
        accounts = await self.context.users.accounts(user.id)
        old = request.session.hash if request.session else None
        shown = [a.account_id for a in accounts]
        before = single_sign_on or (request.session.account_id if request.session else None)
        account = before if before in shown else next(iter(shown), None)
        part = "password" if stage == "password" else "whole"
        sessions = self.context.sessions
        secret = await sessions.begin(user, account, part, request.address, request.agent, old, proved_at, single_sign_on)  # type: ignore[arg-type]
        if secret is None:
            raise CHANGED
        request.set_cookie(SESSION, secret, sessions.seconds)

    async def record_sign_in(self, request: PageRequest, user: User, proof: str) -> None:
        await self.context.users.signed_in(user.id, [audit_entry(request, user, "signed in", proof)])
        self.remember_browser(request, user.email)

    def remember_browser(self, request: PageRequest, email: str) -> None:
        """Mark this browser as known for the address, so that its attempts are counted separately."""
        request.set_cookie(DEVICE, _device(self.context.secrets()[0], email, secrets.token_hex(8)), YEAR)

    # Other services

    def begin_state(self, request: PageRequest, purpose: str, back: str, again: bool, hint: str = "", **facts: str) -> AuthorizationRequest:
        """A sign-in that begins at another service. `back`: the path of the callback; `facts`: what it needs to know."""
        secret = self.context.secrets()[0]
        state = tickets.issue(secret, request.binding, purpose, unix(self.context.clock), **facts)
        return attrs.evolve(self._authorization(state, secret, back), again=again, hint=hint)

    async def take_state(
        self, request: PageRequest, purpose: str, back: str, **expected: str
    ) -> tuple[dict[str, str], AuthorizationRequest]:
        """The facts of a state that comes back for the first time, with these values among them. Raises PageError."""
        state, now, secrets_ = request.query("state"), unix(self.context.clock), self.context.secrets()
        facts = tickets.read(secrets_, request.binding, purpose, state, now)
        secret = tickets.signer(secrets_, request.binding, purpose, state)
        if facts is None or secret is None or any(facts[name] != value for name, value in expected.items()):
            raise STATE_EXPIRED
        if not await self.attempts.spend(state, datetime.fromtimestamp(now + tickets.LIFE, UTC)):
            raise STATE_EXPIRED
        return facts, self._authorization(state, secret, back)

    def _authorization(self, state: str, secret: bytes, back: str) -> AuthorizationRequest:
        nonce, verifier = (tickets.derived(secret, state, what) for what in ("nonce", "verifier"))
        return AuthorizationRequest(f"{self.context.base_url}{back}", state, nonce, verifier)

    # Attempts

    def throttle_subjects(self, request: PageRequest, email: str, kind: str = "email") -> list[Subject]:
        """What an attempt is counted by. A browser known for the address is counted separately."""
        device = request.cookie(DEVICE)
        nonce = device.partition(".")[0]
        if device and any(hmac.compare_digest(device.encode(), _device(each, email, nonce).encode()) for each in self.context.secrets()):
            return [(f"{kind} device", device)]
        return [(kind, email.lower()), ("address", request.address)]

    async def throttled(self, subjects: list[Subject]) -> Refused | None:
        """Count an attempt. Returns Refused if it comes too early."""
        seconds = await self.throttle.attempt(subjects)
        return Refused(429, f"Too many attempts. Try again in {span(max(seconds, 2))}.") if seconds > 0 else None

    async def check_password(self, request: PageRequest, user: User, password: str, message: str) -> Refused | None:
        """Check the password of a signed-in user. Returns Refused if it is wrong or too many were tried."""
        subjects: list[Subject] = [("again", str(user.id))]
        refused = await self.throttled(subjects)
        if refused is not None:
            return refused
        if not await self.passwords.verify(password, user.password):
            await self.record_failure(request, user, "password")
            return Refused(422, message)
        await self.throttle.passed(subjects)
        return None

    async def password_problem(self, who: str, password: str, *known: str) -> str | None:
        """Why a new password is not acceptable, or None. Counted by `who` (a user or a link), since each check takes CPU time."""
        refused = await self.throttled([("choosing", who)])
        return refused.message if refused is not None else await self.passwords.problem(password, *known)

    async def record_failure(self, request: PageRequest, user: User, what: str) -> None:
        await self.context.audit.write(audit_entry(request, user, "sign-in failed", what))

    # Emails

    async def send_notice(self, request: PageRequest, email: str, what: str) -> None:
        """Email the user that their sign-in has changed."""
        if self.mailer is not None:
            self.send_later(email, mails.security_notice(what, stamp(request.now, request.now), request.address))

    def send_later(self, to: str, email: SignInEmail) -> None:
        """Send without making the page wait."""
        assert self.mailer is not None
        self.context.later("sending a sign-in email", self.mailer.send(to, email))

    def link(self, path: str, secret: str) -> str:
        return f"{self.context.base_url}{path}?link={secret}"


def when_signed_in(claimed: Claims) -> datetime:
    """When the user signed in at the other service, as far as it says so."""
    return NEVER if claimed.signed_in_at is None else datetime.fromtimestamp(claimed.signed_in_at, UTC)


def is_address(email: str) -> bool:
    """Whether it is a valid email address in lower case."""
    try:
        return parse_mailbox(email).address.lower() == email
    except AddressError:
        return False


def audit_entry(request: PageRequest, user: User, action: str, subject: str = "") -> Line:
    """An entry about a user who may not be signed in yet, for the audit logs of all their accounts."""
    known = user.id if action != "sign-in failed" else None
    return Line(None, user.id, known, user.email, request.address, action, subject)


def _device(secret: bytes, email: str, nonce: str) -> str:
    return f"{nonce}.{hmac.digest(secret, f'device {email.lower()} {nonce}'.encode(), 'sha256').hex()}"
