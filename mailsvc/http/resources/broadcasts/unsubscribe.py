"""The page that unsubscribe links open, and unsubscribing with one click (RFC 8058).

A GET changes nothing, because programs follow links. A POST from a mail program unsubscribes at once, without cookie or redirect; one
from the page's form saves what was chosen. The token is the authority for both. The page needs no script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from urllib.parse import parse_qs
from uuid import UUID

import attrs

from mailsvc.broadcasts.links import Link
from mailsvc.http import parameters
from mailsvc.http.answer import collection
from mailsvc.http.error_page import FOR_READER, or_error_page
from mailsvc.http.request import Request
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.store.audience.preferences import Also, Standing
from mailsvc.store.audience.values import By, Choice
from mailsvc.store.broadcasts.settings import BroadcastSettings

ONE_CLICK = b"List-Unsubscribe"
TITLE = "Your subscriptions"
MESSAGE = "Choose which emails you want to receive."
TOO_OFTEN = "You have subscribed too often today. Try again tomorrow. You can still unsubscribe."
_BUTTONS = ("topics", "nothing", "again")  # of the form
HEADERS = {
    **FOR_READER,
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src https:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
}
COLORS = {"background": "#f4f4f4", "text": "#222222", "accent": "#0b57d0"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>:root{{--background:{background};--text:{text};--accent:{accent};--line:#ccc}}
@media(prefers-color-scheme:dark){{:root{{--background:#16181c;--text:#eceef2;--accent:#a8c7fa;--line:#4a4f58}}}}
body{{font:16px/1.5 system-ui,sans-serif;margin:0;color:var(--text);background:var(--background)}}
main{{max-width:34rem;margin:0 auto;padding:1.5rem 1rem}}h1{{font-size:1.4rem;overflow-wrap:anywhere}}p{{overflow-wrap:anywhere}}
img{{max-width:12rem;max-height:5rem}}.card{{border:1px solid var(--line);border-radius:.5rem;padding:1rem}}
label{{display:flex;gap:.7rem;align-items:flex-start;padding:.6rem 0}}label span{{overflow-wrap:anywhere}}small{{display:block}}
input{{width:1.25rem;height:1.25rem;flex:none;margin:.15rem 0;accent-color:var(--accent)}}
button{{font:inherit;min-height:2.75rem;padding:.4rem 1.1rem;border-radius:.4rem;border:1px solid var(--text);background:none;
color:var(--text);margin:.6rem .6rem 0 0;cursor:pointer}}button:focus-visible,input:focus-visible{{outline:3px solid var(--accent);
outline-offset:2px}}.done{{border-left:.3rem solid var(--accent);padding-left:.8rem}}</style></head>
<body><main>{logo}<h1 dir="auto">{title}</h1><p dir="auto">{message}</p>{body}</main></body></html>
"""
_WRONG = BroadcastSettings(title="This link is not valid", message="Use the unsubscribe link in the most recent email you received.")


@attrs.define(eq=False)
class UnsubscribePage:
    app = collection()
    context: BroadcastContext

    @app.route("/unsubscribe", methods=["GET", "HEAD"])
    async def show(self, request: Request) -> bytes:
        return await request.detached(or_error_page(request, self._show(request)))

    async def _show(self, request: Request, done: str = "") -> bytes:
        link = await parameters.first(request, "token", self.context.links.read)
        if link is None:
            return _send(request, 404, _page(_WRONG, ""))
        account_id = link.source.account_id
        settings = await self.context.settings.get(account_id)
        standing = await self.context.preferences.standing(account_id, link.hash)
        body = _form(standing, await self.context.settings.sender(account_id), done)
        return _send(request, 200, _page(settings, body))

    @app.route("/unsubscribe", methods=["POST"])
    async def change(self, request: Request) -> bytes:
        return await request.detached(or_error_page(request, self._change(request)))

    async def _change(self, request: Request) -> bytes:
        link = await parameters.first(request, "token", self.context.links.read)
        if link is None:
            return _send(request, 404, _page(_WRONG, ""))
        content = request.body()
        if ONE_CLICK in content:  # 8058 §3.2: as a form, or with parts
            await self._unsubscribe(request, link)
            request.setResponseCode(204)
            return b""
        form = _read(content, self.context.topics + 2)
        done = await self._save(request, link, form) if form.get("save", [""])[0] in _BUTTONS else ""
        return await self._show(request, done)

    async def _unsubscribe(self, request: Request, link: Link) -> None:
        source = link.source
        by = By("one_click", _details(request, link))
        changed = await self.context.preferences.unsubscribe(source.account_id, link.hash, source.topic_id, by, self._mark(link))
        self._changed(changed, by, out=True)

    async def _save(self, request: Request, link: Link, form: Mapping[str, Sequence[str]]) -> str:
        """Save what the form says. Returns a sentence about it."""
        account_id, [action, *_] = link.source.account_id, form["save"]
        settings = await self.context.settings.get(account_id)
        by = By("preferences", _details(request, link), f"{settings.title or TITLE}\n{settings.message or MESSAGE}")
        standing = await self.context.preferences.standing(account_id, link.hash)
        if action == "nothing":
            changed = await self.context.preferences.change(account_id, link.hash, (), True, by, self._mark(link))
            self._changed(changed, by, out=True)
            return "You have been unsubscribed."
        may_subscribe = await self.context.preferences.may_subscribe(account_id, link.hash)
        if action == "again":
            if not may_subscribe:
                return TOO_OFTEN
            changed = await self.context.preferences.change(account_id, link.hash, (), False, by)
            self._changed(changed, by, out=False)
            rest = all(topic.subscribed for topic in standing.topics)
            return "You are subscribed again." if rest else "You are subscribed again, except to what is not checked below."
        ticked = set(form.get("topic", ()))
        offered = set(form["offered"][0].split()) if "offered" in form else {str(topic.id) for topic in standing.topics}
        choices = [(topic, str(topic.id) in ticked) for topic in standing.topics if str(topic.id) in offered]
        differing = [Choice(topic.id, subscribed) for topic, subscribed in choices if subscribed is not topic.subscribed]
        wanted = [each for each in differing if may_subscribe or not each.subscribed]
        out = any(not each.subscribed for each in wanted)
        changed = await self.context.preferences.change(account_id, link.hash, wanted, None, by, self._mark(link) if out else None)
        self._changed(changed, by, out=out)
        return "Your choice has been saved." if wanted == differing else TOO_OFTEN

    def _mark(self, link: Link) -> Also | None:
        """Counts the recipient of a broadcast as unsubscribed with it."""
        source, unsubscribed = link.source, self.context.recipients.unsubscribed
        if source.broadcast_id is None:
            return None
        return partial(
            unsubscribed, account_id=source.account_id, broadcast_id=source.broadcast_id, hash=link.hash, now=self.context.now()
        )  # fmt: skip

    def _changed(self, changed: bool, by: By, out: bool) -> None:
        self.context.unsubscribed[by.source] += changed and out
        if changed:
            self.context.notify("events")


def _details(request: Request, link: Link) -> Mapping[str, str]:
    """For the evidence."""
    source: UUID | None = link.source.broadcast_id or link.source.email_id
    kind = "broadcast" if link.source.broadcast_id is not None else "email"
    agent = (request.requestHeaders.getRawHeaders(b"user-agent") or [b""])[0][:300]
    return {"ip": request.address(), "user_agent": _text(agent), kind: str(source)}


def _read(content: bytes, fields: int) -> Mapping[str, Sequence[str]]:
    """The form: a button, a field for each topic, and one that lists those topics that the page showed."""
    try:
        return parse_qs(_text(content), keep_blank_values=True, max_num_fields=fields)
    except ValueError:
        return {}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\0", "")


def _form(standing: Standing, sender: str, done: str) -> str:
    said = f'<p class="done" role="status">{escape(done)}</p>' if done else ""
    mail = f"newsletters and announcements{f' from <bdi>{escape(sender)}</bdi>' if sender else ''}"
    if standing.unsubscribed:
        text = f"You are unsubscribed from all {mail}. Emails that are only for you, such as receipts, may still arrive."
        return f'{said}<form method="post" class="card"><p>{text}</p><button name="save" value="again">Subscribe again</button></form>'
    topics = "".join(
        f'<label><input type="checkbox" name="topic" value="{topic.id}"{" checked" if topic.subscribed else ""}>'
        f"<span><bdi>{escape(topic.name)}</bdi>{_description(topic.description)}</span></label>"
        for topic in standing.topics
    )
    if topics:
        topics += f'<input type="hidden" name="offered" value="{" ".join(str(topic.id) for topic in standing.topics)}">'
    save = '<button name="save" value="topics">Save</button>' if topics else f"<p>You are subscribed to {mail}.</p>"
    return (
        f'{said}<form method="post" class="card">{topics}{save}'
        '<button name="save" value="nothing">Unsubscribe from everything</button></form>'
    )


def _description(text: str | None) -> str:
    return f'<small dir="auto">{escape(text)}</small>' if text else ""


def preview(settings: BroadcastSettings, standing: Standing, sender: str) -> bytes:
    """The page with these settings, for the account."""
    return _page(settings, _form(standing, sender, ""))


def _page(settings: BroadcastSettings, body: str) -> bytes:
    logo = f'<p><img src="{escape(settings.logo)}" alt=""></p>' if settings.logo else ""
    title, message = escape(settings.title or TITLE), escape(settings.message or MESSAGE)
    text = _text_on(settings.colors.get("background", COLORS["background"]))
    return _PAGE.format(**{**COLORS, "text": text, **settings.colors}, logo=logo, title=title, message=message, body=body).encode(
        "utf-8", "replace"
    )


def _text_on(background: str) -> str:
    """The default text color: dark, or light on a dark background."""
    red, green, blue = bytes.fromhex(background[1:])
    return COLORS["text"] if 299 * red + 587 * green + 114 * blue > 128_000 else "#ffffff"


def _send(request: Request, status: int, page: bytes) -> bytes:
    for name, value in HEADERS.items():
        request.setHeader(name, value)
    return request.sized(status, page)
