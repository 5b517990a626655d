"""Emails about signing in. They are sent like all system mail: through intake, signed and delivered."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from unicodedata import normalize
from uuid import uuid4

import attrs

from mailsvc.system_mail import SystemMail

SOURCE = "dashboard"  # the `source` of these emails, whose content pages never show
_PHONE_DIGITS = 7  # in a phone number, at least


@attrs.frozen
class SignInEmail:
    """`paragraphs` come before the link, `footer` follows it."""

    subject: str
    paragraphs: tuple[str, ...]
    link: tuple[str, str] | None = None  # label, URL
    footer: tuple[str, ...] = ()


@attrs.define(eq=False)
class Mailer:
    """Sends these emails as system mail."""

    system_mail: SystemMail

    async def send(self, address: str, email: SignInEmail) -> None:
        await self.system_mail.send(address, email.subject, text(email), uuid4().hex, html=html(email), source=SOURCE)


def text(email: SignInEmail) -> str:
    link = [f"{email.link[0]}:\n{email.link[1]}"] if email.link else []
    return "\n\n".join([*email.paragraphs, *link, *email.footer]) + "\n"


def html(email: SignInEmail) -> str:
    body = "".join("<p>" + escape(line).replace("\n", "<br>") + "</p>" for line in email.paragraphs)
    if email.link:
        label, url = email.link
        style = (
            "display:inline-block;padding:12px 20px;border-radius:8px;background:#1f6f54;color:#ffffff;text-decoration:none;font-weight:600"
        )
        body += f'<p><a href="{escape(url)}" style="{style}">{escape(label)}</a></p>'
    body += "".join(f'<p style="color:#5c6660">{escape(line)}</p>' for line in email.footer)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(email.subject)}</title></head>"
        '<body style="margin:0;padding:32px 20px;font:16px/1.5 system-ui,sans-serif;color:#17201b;background:#ffffff">'
        f'<div style="max-width:520px;margin:0 auto">{body}</div></body></html>'
    )


def dns_records(domain: str, by: str, records: Sequence[str]) -> SignInEmail:
    """To whoever can edit the DNS of a domain. `records`: each in several lines."""
    return SignInEmail(
        f"DNS records for {domain}",
        (f"{by} wants to send email from {domain} with mailsvc and asks you to add these records to its DNS.", *records),
        None,
        ("Names are complete: leave out the part that your DNS provider adds. mailsvc checks the records automatically.",),
    )


def sign_up(link: str) -> SignInEmail:
    return SignInEmail(
        "Confirm your email address",
        ("Confirm this address to finish signing up for mailsvc.",),
        ("Confirm email address", link),
        ("This link works once and expires in an hour. If you didn't sign up, ignore this email.",),
    )


def already_registered(link: str) -> SignInEmail:
    return SignInEmail(
        "You already have a sign-in",
        ("Someone, probably you, tried to sign up for mailsvc with this address. It is already registered.",),
        ("Sign in", link),
        ("If you forgot your password, you can reset it on the sign-in page.",),
    )


def reset(link: str) -> SignInEmail:
    return SignInEmail(
        "Reset your password",
        ("We received a request to reset your mailsvc password.",),
        ("Reset password", link),
        ("This link works once and expires in an hour. If you didn't request it, ignore this email. Your password stays the same.",),
    )


def invitation(account: str, by: str, link: str) -> SignInEmail:
    """Anybody can be invited, and an account can have any name: the name is left out if it could be a message of its own."""
    plain = _is_plain(account)
    return SignInEmail(
        f"Join {account} on mailsvc" if plain else "Join an account on mailsvc",
        (f"{by} invited you to join {f'the account {account}' if plain else 'their account'} on mailsvc.",),
        ("Accept invitation", link),
        ("This invitation expires in 7 days.",),
    )


def _is_plain(name: str) -> bool:
    """Whether mail programs show it as it is: without web addresses, phone numbers and invisible characters."""
    text = normalize("NFKC", name).replace("\N{IDEOGRAPHIC FULL STOP}", ".")
    address = any("/" in word or "@" in word or "." in word.strip(".") for word in text.split())
    return text.isprintable() and not address and sum(character.isdigit() for character in text) < _PHONE_DIGITS


def confirm_address(link: str, *, new: bool) -> SignInEmail:
    return SignInEmail(
        "Confirm your new email address" if new else "Confirm your email address",
        ("Confirm this address to use it for signing in to mailsvc.",),
        ("Confirm email address", link),
        ("This link works once and expires in an hour. Open it where you are signed in. If you didn't request this, ignore this email.",),
    )


def address_taken() -> SignInEmail:
    return SignInEmail(
        "Your email address is already in use",
        ("Someone, possibly you, tried to use this address for another mailsvc user. It already belongs to you, so nothing changed.",),
        None,
        ("An address can belong to one user only. If this wasn't you, ignore this email.",),
    )


def address_changed(new: str, when: str, where: str) -> SignInEmail:
    return SignInEmail(
        "Your email address was changed",
        (f"Your mailsvc email address was changed to {new} on {when} from the IP address {where}. We won't email this address again.",),
        None,
        ("If this wasn't you, contact an account admin or the operator of this service immediately.",),
    )


def security_notice(what: str, when: str, where: str) -> SignInEmail:
    return SignInEmail(
        f"Your {what}",
        (f"Your {what} on {when} from the IP address {where}.",),
        None,
        ("If this wasn't you, change your password immediately. That signs out all other sessions. Then contact an account admin.",),
    )
