"""What signing in comes to, whichever way: a new session, its cookies, and where to go on."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime

import attrs

from mailsvc.dashboard import safety
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SESSION, SIGN_IN, Visit
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.mails import Letter, Mails
from mailsvc.dashboard.signin.password import Passwords
from mailsvc.dashboard.signin.throttle import Subject, Throttle
from mailsvc.dashboard.words import span, stamp
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.people.audit import Line
from mailsvc.store.people.sign_in_attempts import SignInAttempts
from mailsvc.store.people.users import User

DEVICE = "mailsvc-device"
YEAR = 365 * 86400


@attrs.frozen
class Refused:
    """An attempt that was not good, or not even looked at: a status, and a sentence for beside the field."""

    status: int
    sentence: str


@attrs.define(eq=False)
class Entrance:
    """Shared by the pages of signin/. `letters` is None where the service cannot send mails of its own."""

    desk: PageContext
    passwords: Passwords
    throttle: Throttle
    attempts: SignInAttempts
    letters: Mails | None

    async def enter(
        self, visit: Visit, user: User, next_: str, *, proof: str, both: bool = False, proved_at: datetime | None = None
    ) -> bytes:
        """Sign them in: all the way, or to where the second factor is asked for. `both`: this proof was that too.

        A session that was there ends. `proved_at`: when they proved who they are; None: just now.
        """
        stage = "password" if user.second_factor and not both else "whole"
        await self.begin(visit, user, stage, proved_at)
        if stage == "whole":
            await self.entered(visit, user, proof)
            return visit.redirect(safety.inside(next_))
        return visit.redirect(f"{SIGN_IN}/code", next=safety.inside(next_))

    async def begin(self, visit: Visit, user: User, stage: str, proved_at: datetime | None = None) -> None:
        """A session with a secret that nobody saw before."""
        accounts = await self.desk.users.accounts(user.id)
        old = visit.session.hash if visit.session else None
        shown = [a.account_id for a in accounts]
        before = visit.session.account_id if visit.session else None
        account = before if before in shown else next(iter(shown), None)
        part = "password" if stage == "password" else "whole"
        secret = await self.desk.sessions.begin(user.id, account, part, visit.address, visit.agent, old, proved_at)  # type: ignore[arg-type]
        visit.set_cookie(SESSION, secret, 30 * 86400)

    async def entered(self, visit: Visit, user: User, proof: str) -> None:
        await self.desk.users.signed_in(user.id, [line(visit, user, "signed in", proof)])
        self.remember(visit, user.email)

    def remember(self, visit: Visit, email: str) -> None:
        """This browser signed in to that address: it is counted by itself from now on."""
        visit.set_cookie(DEVICE, _device(self.desk.secrets()[0], email, secrets.token_hex(8)), YEAR)

    # Attempts

    def subjects(self, visit: Visit, email: str, kind: str = "email") -> list[Subject]:
        """What an attempt is counted by. A browser that signed in to this address before is counted by itself."""
        device = visit.cookie(DEVICE)
        nonce = device.partition(".")[0]
        if device and any(hmac.compare_digest(device.encode(), _device(each, email, nonce).encode()) for each in self.desk.secrets()):
            return [(f"{kind} device", device)]
        return [(kind, email.lower()), ("address", visit.address)]

    async def attempt(self, subjects: list[Subject]) -> Refused | None:
        """Count one; whether it is too early for it."""
        seconds = await self.throttle.attempt(subjects)
        return Refused(429, f"Too many attempts. Try again in {span(max(seconds, 2))}.") if seconds > 0 else None

    async def checked(self, visit: Visit, user: User, password: str, sentence: str) -> Refused | None:
        """Whether somebody who is signed in does not know their password."""
        subjects: list[Subject] = [("again", str(user.id))]
        refused = await self.attempt(subjects)
        if refused is not None:
            return refused
        if not await self.passwords.good(password, user.password):
            await self.failed(visit, user, "password")
            return Refused(422, sentence)
        await self.throttle.passed(subjects)
        return None

    async def unfit(self, who: str, password: str, *known: str) -> str | None:
        """Why a chosen password will not do. Counted by `who` chooses (a user or a link), since each look takes work."""
        refused = await self.attempt([("choosing", who)])
        return refused.sentence if refused is not None else await self.passwords.wrong(password, *known)

    async def failed(self, visit: Visit, user: User, what: str) -> None:
        await self.desk.audit.write(line(visit, user, "sign-in failed", what))

    # Mails

    async def notice(self, visit: Visit, email: str, what: str) -> None:
        """Tell them that something about how they sign in has changed."""
        if self.letters is not None:
            letter = mails.changed(what, stamp(self.desk.now()), visit.address)
            self.desk.later("a notice mail", self.letters.send(email, letter))

    def write(self, email: str, letter: Letter) -> None:
        assert self.letters is not None
        self.desk.later("a mail of the service", self.letters.send(email, letter))

    def link(self, path: str, secret: str) -> str:
        return f"{self.desk.base_url}{path}?link={secret}"


def plausible(email: str) -> bool:
    """Whether it is an address, in lower case."""
    try:
        return parse_mailbox(email).address.lower() == email
    except AddressError:
        return False


def line(visit: Visit, user: User, action: str, subject: str = "") -> Line:
    """About somebody who may not be signed in yet: into the logs of all their accounts."""
    known = user.id if action != "sign-in failed" else None
    return Line(None, user.id, known, user.email, visit.address, action, subject)


def _device(secret: bytes, email: str, nonce: str) -> str:
    return f"{nonce}.{hmac.digest(secret, f'device {email.lower()} {nonce}'.encode(), 'sha256').hex()}"
