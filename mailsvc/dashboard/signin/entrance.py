"""What signing in comes to, whichever way: a new session, its cookies, and where to go on."""

from __future__ import annotations

import hmac
import secrets

import attrs

from mailsvc.dashboard import safety
from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import SESSION, SIGN_IN, Visit
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.mails import Letter, Mails
from mailsvc.dashboard.signin.password import Passwords
from mailsvc.dashboard.signin.throttle import Throttle
from mailsvc.dashboard.words import stamp
from mailsvc.store.users import User

DEVICE = "mailsvc-device"
YEAR = 365 * 86400


@attrs.define(eq=False)
class Entrance:
    """Shared by the pages of signin/. `letters` is None where the service cannot send mails of its own."""

    desk: Desk
    passwords: Passwords
    throttle: Throttle
    letters: Mails | None

    async def enter(self, visit: Visit, user: User, next_: str, *, proof: str) -> bytes:
        """Sign them in: all the way, or to where the second factor is asked for. A session that was there ends."""
        stage = "password" if user.totp else "whole"
        await self.begin(visit, user, stage)
        if stage == "whole":
            await self.entered(visit, user, proof)
            return visit.redirect(safety.inside(next_))
        return visit.redirect(f"{SIGN_IN}/code", next=safety.inside(next_))

    async def begin(self, visit: Visit, user: User, stage: str) -> None:
        """A session with a secret that nobody saw before."""
        accounts = await self.desk.users.accounts(user.id)
        old = visit.session.hash if visit.session else None
        shown = [a.account_id for a in accounts]
        before = visit.session.account_id if visit.session else None
        account = before if before in shown else next(iter(shown), None)
        part = "password" if stage == "password" else "whole"
        secret = await self.desk.sessions.begin(user.id, account, part, visit.address, visit.agent, old)  # type: ignore[arg-type]
        visit.set_cookie(SESSION, secret, 30 * 86400)

    async def entered(self, visit: Visit, user: User, proof: str) -> None:
        await self.desk.users.signed_in(user.id)
        visit.set_cookie(DEVICE, _device(self.desk.secrets()[0], user.email, secrets.token_hex(8)), YEAR)
        for account in await self.desk.users.accounts(user.id):
            await self.desk.audit.add(account.account_id, user.id, user.email, visit.address, "signed in", proof)

    def subjects(self, visit: Visit, email: str) -> list[tuple[str, str]]:
        """What a failed attempt is counted by."""
        device = visit.cookie(DEVICE)
        nonce = device.partition(".")[0]
        if device and any(hmac.compare_digest(device.encode(), _device(each, email, nonce).encode()) for each in self.desk.secrets()):
            return [("device", device)]
        return [("email", email.lower()), ("address", visit.address)]

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


def _device(secret: bytes, email: str, nonce: str) -> str:
    return f"{nonce}.{hmac.digest(secret, f'device {email.lower()} {nonce}'.encode(), 'sha256').hex()}"
