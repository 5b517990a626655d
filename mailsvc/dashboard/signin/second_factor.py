"""The second factor: a code from an authenticator app or one of ten recovery codes, and the page that asks for it."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Iterable
from unicodedata import decimal

import attrs
import pyotp

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SIGN_IN, PageRequest, page, section_app
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin.completion import Authentication, Refused
from mailsvc.dashboard.signin.passkeys import PasskeySignIn
from mailsvc.dashboard.signin.throttle import Subject
from mailsvc.store.people.users import User

STEP = 30  # seconds per code (6238 §4)
AROUND = (0, -1, 1)  # accepted steps of clock difference (6238 §5.2)
SECRET_BYTES = 20  # 4226 §4
CODES, CODE_BYTES = 10, 7
ISSUER = "mailsvc"


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def shown(secret: bytes) -> str:
    """The secret as text for typing into an app."""
    return base64.b32encode(secret).decode()


def uri(secret: bytes, email: str, issuer: str = ISSUER) -> str:
    """The content of the QR code."""
    return str(pyotp.TOTP(shown(secret)).provisioning_uri(name=email, issuer_name=issuer))


def step_of(secret: bytes, code: str, now: float) -> int | None:
    """The time step of a code, or None if it is not valid now. The digits may be of any script."""
    totp, present = pyotp.TOTP(shown(secret)), int(now) // STEP
    given = "".join(str(decimal(each, each)) for each in code).encode("utf-8", "surrogateescape")
    return next((present + off for off in AROUND if hmac.compare_digest(totp.at((present + off) * STEP).encode(), given)), None)


def new_codes() -> list[str]:
    """Recovery codes of 56 bits each, in letters and digits that are not easily confused."""
    texts = [base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode().rstrip("=").lower() for _ in range(CODES)]
    return [f"{text[:4]}-{text[4:8]}-{text[8:]}" for text in texts]


@attrs.define(eq=False)
class SecondFactor:
    app = section_app()
    context: PageContext
    authentication: Authentication
    passkeys: PasskeySignIn

    @page(app, f"{SIGN_IN}/code", access="first_factor")
    async def form(self, request: PageRequest) -> bytes:
        if request.user_session.stage == "whole":
            return request.redirect(inside(request.query("next")))
        return await self._shown(request, {})

    @page(app, f"{SIGN_IN}/code", "POST", access="first_factor")
    async def check(self, request: PageRequest) -> bytes:
        user = await self.context.users.get(request.user_session.user_id)
        if user is None or request.user_session.stage == "whole":
            return request.redirect(SIGN_IN)
        subjects = self.authentication.throttle_subjects(request, user.email, "code")
        refused = await self.authentication.throttled(subjects)
        if refused is not None:
            return await self._shown(request, {"code": refused.message}, refused.status)
        proof = await self.proof(user, request.field("code"))
        if proof is None:
            await self.authentication.throttle.failed(subjects)
            await self.authentication.record_failure(request, user, "second factor")
            return await self._shown(request, {"code": "This code is incorrect or was already used."}, 422)
        await self.authentication.throttle.passed(subjects)
        if proof == "recovery code":
            await self.authentication.send_notice(request, user.email, "recovery code was used")
        return await self.authentication.sign_in(request, user, request.field("next"), proof=proof, both=True)

    async def proof(self, user: User, text: str) -> str | None:
        """Which second factor the code proves, or None. Uses up the code."""
        code = text.replace(" ", "").replace("-", "").lower()
        if len(code) == 6 and code.isdecimal():
            return "authenticator app" if await self._of_app(user, code) else None
        return "recovery code" if await self.context.users.take_recovery_code(user.id, self.hashes(code)) else None

    async def checked(self, request: PageRequest, user: User) -> Refused | None:
        """Check the authenticator code of a signed-in user. Returns Refused if it is wrong or too many were tried."""
        subjects: list[Subject] = [("again", str(user.id))]
        refused = await self.authentication.throttled(subjects)
        if refused is not None:
            return refused
        if not await self._of_app(user, request.field("code").replace(" ", "")):
            await self.authentication.record_failure(request, user, "second factor")
            return Refused(422, "This code is incorrect or was already used.")
        await self.authentication.throttle.passed(subjects)
        return None

    async def _of_app(self, user: User, code: str) -> bool:
        """Whether the app's code is valid now and unused."""
        secret = await self.context.users.totp(user.id) if user.totp else None
        step = step_of(secret, code, unix(self.context.clock)) if secret else None
        return step is not None and await self.context.users.take_totp(user.id, step)

    def hashes(self, code: str) -> list[bytes]:
        """Hashes of a recovery code, with the current secret first. Without a secret, a copy of the database reveals no code."""
        text = b"recovery " + code.replace("-", "").encode("utf-8", "surrogateescape")
        return [hmac.digest(secret, text, "sha256") for secret in self.context.secrets()]

    def all_hashed(self, codes: Iterable[str]) -> list[bytes]:
        return [self.hashes(code)[0] for code in codes]

    async def _shown(self, request: PageRequest, errors: dict[str, str], status: int = 200) -> bytes:
        next_ = inside(request.field("next") or request.query("next"))
        user = await self.context.users.get(request.user_session.user_id)
        options = await self.passkeys.options(request, user) if user is not None and user.passkey else ""
        app = user is not None and user.totp
        return request.render("signin/code.html", status, errors=errors, next=next_, passkey_options=options, app=app)
