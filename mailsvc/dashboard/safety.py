"""Protection of pages: response headers, cookies, form tokens (CSRF), redirect targets. Pure."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit
from uuid import UUID

HOME = "/dashboard"

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'"
)
# An email's preview has an opaque origin: no scripts, forms or cookies, and remote images only on request.
_MAIL_CSP = (
    "sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'; style-src 'unsafe-inline'; font-src data:; "
    "img-src data:{images}; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
_HSTS = {"Strict-Transport-Security": "max-age=31536000; includeSubDomains"}  # 6797 §6.1
_SIGNATURE = 64  # characters of a token
_PATH = re.compile(r"/dashboard(/[A-Za-z0-9_.~-]+)*(\?[A-Za-z0-9_.~%&=+@:-]*)?")


def headers(*, secure: bool, csp: str = CSP, cache: str = "no-store") -> dict[str, str]:
    return {"Content-Security-Policy": csp, "Cache-Control": cache, **_ALWAYS, **(_HSTS if secure else {})}


def editor_csp(nonce: str, images: str) -> str:
    """The policy of the broadcast editor, whose libraries create style elements, and which shows images from everywhere. `images`: the
    origin of uploaded ones, which has no TLS in development.
    """
    return image_csp(f"blob: https: {images}").replace("style-src 'self'", f"style-src 'self' 'nonce-{nonce}'")


def image_csp(images: str) -> str:
    """The policy of a page that shows images of another origin."""
    return CSP.replace("img-src 'self' data:", f"img-src 'self' data: {images}")


def mail_csp(*, images: bool) -> str:
    """The policy for an email's preview. `images`: allow remote images."""
    return _MAIL_CSP.format(images=" https: http:" if images else "")


def cookie_name(name: str, *, secure: bool) -> str:
    return f"__Host-{name}" if secure else name


def cookie(name: str, value: str, *, secure: bool, seconds: int | None = None) -> str:
    """A Set-Cookie value. `seconds` None: a session cookie."""
    age = "" if seconds is None else f"; Max-Age={seconds}"
    return f"{cookie_name(name, secure=secure)}={value}; Path=/; HttpOnly; SameSite=Lax{age}{'; Secure' if secure else ''}"


def cookies(values: Iterable[str]) -> dict[str, str]:
    """The cookies of a request. The first one of a name counts."""
    found: dict[str, str] = {}
    for value in values:
        for pair in value.split(";"):
            name, equals, content = pair.strip().partition("=")
            if equals:
                found.setdefault(name, content)
    return found


def token(secret: bytes, binding: str, account_id: UUID | None = None) -> str:
    """The token of a form. It is bound to a session, or to a browser without one. After it: the account that the page shows."""
    signature = hmac.digest(secret, b"form " + binding.encode("utf-8", "surrogateescape"), "sha256").hex()
    return signature if account_id is None else signature + account_id.hex


def same_token(secrets: Sequence[bytes], binding: str, given: str) -> bool:
    """Whether the token is that of the session or browser, whatever account its page showed."""
    encoded = given[:_SIGNATURE].encode("utf-8", "surrogateescape")
    return bool(binding) and any(hmac.compare_digest(token(secret, binding).encode(), encoded) for secret in secrets)


def of_another_account(given: str, account_id: UUID | None) -> bool:
    """Whether the page with this token showed another account. The member has switched since, in another tab."""
    shown = given[_SIGNATURE:]
    return bool(shown) and (account_id is None or shown != account_id.hex)


def from_our_page(sent: Mapping[str, str], host: str) -> bool:
    """Whether the headers say that the form came from our own page. Without these headers only the token decides."""
    site, origin = sent.get("sec-fetch-site", ""), sent.get("origin", "")
    if site and site != "same-origin":
        return False
    try:
        return not origin or (bool(host) and urlsplit(origin).netloc.lower() == host.lower())
    except ValueError:
        return False


def inside(path: str) -> str:
    """The path if it belongs to the dashboard, otherwise the home page."""
    return path if _PATH.fullmatch(path) and "/.." not in path else HOME
