"""What keeps a page from being misused: headers, cookies, the token of forms, and where a redirect may lead. Pure."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

HOME = "/dashboard"

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'"
)
# A mail is shown as a document of no origin at all: no script, no form, no cookie, and nothing from elsewhere unless asked for.
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
_PATH = re.compile(r"/dashboard(/[A-Za-z0-9_.~-]+)*(\?[A-Za-z0-9_.~%&=+@:-]*)?")


def headers(*, secure: bool, csp: str = CSP, cache: str = "no-store") -> dict[str, str]:
    return {"Content-Security-Policy": csp, "Cache-Control": cache, **_ALWAYS, **(_HSTS if secure else {})}


def mail_csp(*, images: bool) -> str:
    """For an email that somebody else wrote. `images`: from other servers too."""
    return _MAIL_CSP.format(images=" https: http:" if images else "")


def cookie_name(name: str, *, secure: bool) -> str:
    return f"__Host-{name}" if secure else name


def cookie(name: str, value: str, *, secure: bool, seconds: int | None = None) -> str:
    """A Set-Cookie value; `seconds` None: until the browser ends."""
    age = "" if seconds is None else f"; Max-Age={seconds}"
    return f"{cookie_name(name, secure=secure)}={value}; Path=/; HttpOnly; SameSite=Lax{age}{'; Secure' if secure else ''}"


def cookies(values: Iterable[str]) -> dict[str, str]:
    """What a browser sent; the first of a name counts."""
    found: dict[str, str] = {}
    for value in values:
        for pair in value.split(";"):
            name, equals, content = pair.strip().partition("=")
            if equals:
                found.setdefault(name, content)
    return found


def token(secret: bytes, anchor: str) -> str:
    """What every form carries: it belongs to one session, or to one browser that has none."""
    return hmac.digest(secret, b"form " + anchor.encode("utf-8", "surrogateescape"), "sha256").hex()


def same_token(secrets: Sequence[bytes], anchor: str, given: str) -> bool:
    octets = given.encode("utf-8", "surrogateescape")
    return bool(anchor) and any(hmac.compare_digest(token(secret, anchor).encode(), octets) for secret in secrets)


def from_our_page(sent: Mapping[str, str], host: str) -> bool:
    """Whether the browser says that a page of ours sent this form; one that says nothing is judged by the token alone."""
    site, origin = sent.get("sec-fetch-site", ""), sent.get("origin", "")
    if site and site != "same-origin":
        return False
    try:
        return not origin or (bool(host) and urlsplit(origin).netloc.lower() == host.lower())
    except ValueError:
        return False


def inside(path: str) -> str:
    """The path, if it is one of our pages; else the first page."""
    return path if _PATH.fullmatch(path) and "/.." not in path else HOME
