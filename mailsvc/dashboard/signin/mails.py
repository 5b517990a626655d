"""The mails that the service itself sends to people. They take the way of all mail: through intake, signed and delivered."""

from __future__ import annotations

from html import escape
from uuid import uuid4

import attrs

from mailsvc.system_mail import SystemMail

SOURCE = "dashboard"  # what is written to people alone: such mail is shown to nobody else


@attrs.frozen
class Letter:
    """`lines` come before the link, `after` behind it."""

    subject: str
    lines: tuple[str, ...]
    link: tuple[str, str] | None = None  # what it says, where it leads
    after: tuple[str, ...] = ()


@attrs.define(eq=False)
class Mails:
    """Letters by the service's own mail."""

    own: SystemMail

    async def send(self, address: str, letter: Letter) -> None:
        await self.own.send(address, letter.subject, text(letter), uuid4().hex, html=html(letter), source=SOURCE)


def text(letter: Letter) -> str:
    link = [f"{letter.link[0]}:\n{letter.link[1]}"] if letter.link else []
    return "\n\n".join([*letter.lines, *link, *letter.after]) + "\n"


def html(letter: Letter) -> str:
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in letter.lines)
    if letter.link:
        says, leads = letter.link
        style = (
            "display:inline-block;padding:12px 20px;border-radius:8px;background:#1f6f54;color:#ffffff;text-decoration:none;font-weight:600"
        )
        paragraphs += f'<p><a href="{escape(leads)}" style="{style}">{escape(says)}</a></p>'
    paragraphs += "".join(f'<p style="color:#5c6660">{escape(line)}</p>' for line in letter.after)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(letter.subject)}</title></head>"
        '<body style="margin:0;padding:32px 20px;font:16px/1.5 system-ui,sans-serif;color:#17201b;background:#ffffff">'
        f'<div style="max-width:520px;margin:0 auto">{paragraphs}</div></body></html>'
    )


def sign_up(link: str) -> Letter:
    return Letter(
        "Confirm your email address",
        ("You asked to sign up to mailsvc with this address.",),
        ("Confirm and go on", link),
        ("The link works once, for an hour. If it was not you, do nothing: nobody can sign up without it.",),
    )


def already_there(link: str) -> Letter:
    return Letter(
        "You have signed up already",
        ("Somebody, probably you, asked to sign up to mailsvc with this address. It is signed up already.",),
        ("Sign in", link),
        ("If you do not know your password any more, choose a new one from there.",),
    )


def reset(link: str) -> Letter:
    return Letter(
        "Choose a new password",
        ("You asked for a new password for mailsvc.",),
        ("Choose a new password", link),
        ("The link works once, for an hour. If it was not you, do nothing: your password stays as it is.",),
    )


def invitation(account: str, by: str, link: str) -> Letter:
    return Letter(
        f"Join {account} on mailsvc",
        (f"{by} invited you to the account {account} on mailsvc, where it sends its mail.",),
        ("Accept the invitation", link),
        ("The invitation is good for seven days.",),
    )


def address(link: str) -> Letter:
    return Letter(
        "Confirm your new address",
        ("You asked that mailsvc knows you by this address from now on.",),
        ("Use this address", link),
        ("The link works once, for an hour, where you are signed in. If it was not you, do nothing: nobody can use your address.",),
    )


def address_taken() -> Letter:
    asked = "Somebody, perhaps you, asked that mailsvc knows them by this address from now on."
    return Letter(
        "Somebody asked for your address",
        (f"{asked} It belongs to your sign-in, so that it stays yours.",),
        None,
        ("If it was you: one address can belong to one sign-in only. If it was not you, do nothing.",),
    )


def moved(new: str, when: str, where: str) -> Letter:
    return Letter(
        "Your email address was changed",
        (f"On {when}, from the address {where}, your address at mailsvc was changed to {new}. This is the last mail to this one.",),
        None,
        ("If it was not you, tell an admin of your account or the operator of this service at once.",),
    )


def changed(what: str, when: str, where: str) -> Letter:
    return Letter(
        f"Your {what}",
        (f"Your {what} on {when}, from the address {where}.",),
        None,
        ("If it was not you, choose a new password at once: that ends all sessions. Then tell an admin of your account.",),
    )
