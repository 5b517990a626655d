"""The editor's page, and what its script asks for: saving, the state, earlier versions, the preview, a test email."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import attrs
import orjson
from markupsafe import Markup

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.editor import form
from mailsvc.dashboard.editor.form import Wrong
from mailsvc.dashboard.editor.preview import Previews, Reserve, framed
from mailsvc.dashboard.emails.sending import NotSent
from mailsvc.dashboard.emails.trial import TrialPages
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME, editor_csp, mail_csp
from mailsvc.mail import merge
from mailsvc.settings.audience import Broadcasts
from mailsvc.store.audience.properties import Properties
from mailsvc.store.audience.segments import Segments
from mailsvc.store.audience.topics import Topics
from mailsvc.store.broadcasts.broadcasts import Refused, named
from mailsvc.store.broadcasts.versions import Draft, Listed, Opened, Saved, Versions
from mailsvc.store.domains.domains import Domains
from mailsvc.store.paging import ALL

BROADCASTS = f"{HOME}/broadcasts"
EDIT = f"{BROADCASTS}/<text>/edit"
JSON = "application/json"
_DONE = {
    "saved": "Saved.",
    "restored": "Restored. What was there before is in the list of versions.",
    "tested": "The test email was sent.",
}
_REFUSED: Mapping[str, tuple[str, str]] = {
    "segment": ("segment", "This segment no longer exists. Choose another one."),
    "topic": ("topic", "This topic no longer exists. Choose another one."),
}


@attrs.define(eq=False)
class EditorPages:
    app = section_app()
    context: PageContext
    versions: Versions
    previews: Previews
    domains: Domains
    segments: Segments
    topics: Topics
    properties: Properties
    limits: Broadcasts
    images: str  # the origin of uploaded images
    trials: TrialPages

    @page(app, EDIT, access="change_audience")
    async def edit(self, request: PageRequest, text: str) -> bytes:
        broadcast_id = request.uuid(text, "broadcast")
        opened = await self.versions.open(request.account_id, broadcast_id)
        if opened == "status":
            return request.redirect(f"{BROADCASTS}/{broadcast_id}", done="not-draft")
        return await self._shown(request, broadcast_id, _found(opened), {}, {})

    async def _shown(
        self, request: PageRequest, broadcast_id: UUID, opened: Opened, typed: Mapping[str, str], errors: Mapping[str, str]
    ) -> bytes:  # fmt: skip
        """`typed`: what a form had that could not be saved."""
        account_id, draft = request.account_id, opened.draft
        nonce = secrets.token_urlsafe(16)
        shown = request.render(
            "editor/edit.html",
            422 if errors else 200,
            nonce=nonce,
            id=broadcast_id,
            base=opened.base,
            values={name: typed.get(name, value) for name, value in form.fields(draft).items()},
            as_html=_as_html(draft, request.query("view")),
            foreign=draft.document is None and bool(draft.content.html or draft.content.text),
            errors=errors,
            done=_DONE.get(request.query("done"), ""),
            domains=await self._domains(account_id, form.fields(draft)["from_domain"]),
            segments=(await self.segments.list(account_id, ALL))[0],
            topics=(await self.topics.list(account_id, ALL))[0],
            variables=await self._variables(account_id),
            offer=await self.trials.shared.offer(request),
            trial=await self.trials.of(request),
        )
        request.set_header("Content-Security-Policy", editor_csp(nonce, self.images))
        return shown

    @page(app, f"{EDIT}/save", "POST", access="change_audience")
    async def save(self, request: PageRequest, text: str) -> bytes:
        """Called by the script, which gets JSON, and by the form of a browser without scripts, which gets a page."""
        broadcast_id = request.uuid(text, "broadcast")
        opened = _found(await self.versions.open(request.account_id, broadcast_id))
        try:
            saved = await self._save(
                request, broadcast_id, form.read(request.form, opened.draft, self.limits), apart=not _by_script(request)
            )
        except Wrong as wrong:
            if _by_script(request):
                return _json(request, {"errors": wrong.errors}, 422)
            return await self._shown(request, broadcast_id, opened, request.form, wrong.errors)
        if _by_script(request):
            return _json(request, {"base": saved.base, "overwritten": _view(request, saved.overwritten)})
        return request.redirect(f"{BROADCASTS}/{broadcast_id}/edit", done="saved")

    @page(app, f"{EDIT}/state", access="change_audience")
    async def state(self, request: PageRequest, text: str) -> bytes:
        """Names what is stored now, so that the script notices what somebody else saved. Has the token of the session, which can be new."""
        opened = _found(await self.versions.open(request.account_id, request.uuid(text, "broadcast")))
        return _json(request, {"base": opened.base, "newest": _view(request, opened.newest), "token": request.token})

    @page(app, f"{EDIT}/versions", access="change_audience")
    async def earlier(self, request: PageRequest, text: str) -> bytes:
        broadcast_id = request.uuid(text, "broadcast")
        _found(await self.versions.open(request.account_id, broadcast_id))
        found = await self.versions.list(request.account_id, broadcast_id)
        return request.render("editor/versions.html", id=broadcast_id, versions=found)

    @page(app, f"{EDIT}/restore", "POST", access="change_audience")
    async def restore(self, request: PageRequest, text: str) -> bytes:
        broadcast_id, number = request.uuid(text, "broadcast"), request.field("version")
        found = None
        if number.isascii() and number.isdecimal() and len(number) < 9:
            found = await self.versions.get(request.account_id, broadcast_id, int(number))
        if found is None:
            raise not_found("version")
        try:
            await self._save(request, broadcast_id, found, apart=True)
        except Wrong as wrong:
            raise PageError(409, "Not restored", next(iter(wrong.errors.values()))) from None
        return request.redirect(f"{BROADCASTS}/{broadcast_id}/edit", done="restored")

    @page(app, f"{EDIT}/preview", access="change_audience")
    async def preview(self, request: PageRequest, text: str) -> bytes:
        """The document in the preview frame: an opaque origin without scripts."""
        opened = _found(await self.versions.open(request.account_id, request.uuid(text, "broadcast")))
        csp = mail_csp(images=True)
        try:
            contact = await self._contact(request, request.query("contact"))
            texts = await self.previews.merged(request.account_id, opened.draft.content, contact, _reserving(request))
        except PageError as why:  # its page cannot be in a frame
            return request.send(Markup("<p>{}</p>").format(why.message).encode(), "text/html; charset=utf-8", why.status, csp=csp)
        if request.query("view") == "text":
            return request.send((texts.text or "").encode("utf-8", "replace"), "text/plain; charset=utf-8", csp=csp)
        html = texts.html or "<p>The broadcast has no HTML yet.</p>"
        html = framed(html, dark=request.query("view") == "dark")
        return request.send(html.encode("utf-8", "replace"), "text/html; charset=utf-8", csp=csp)

    @page(app, f"{EDIT}/test", "POST", access="change_audience")
    async def test(self, request: PageRequest, text: str) -> bytes:
        """Send the stored draft to the user who asks."""
        broadcast_id, to = request.uuid(text, "broadcast"), request.user_session.email
        opened = _found(await self.versions.open(request.account_id, broadcast_id))
        [line] = named(opened.draft.content.name, [request.audit_entry("broadcast tested", str(broadcast_id))])
        try:
            contact = await self._contact(request, request.field("contact"))
            sent = await self.previews.send_test(request.account_id, opened.draft.content, contact, to, line, _reserving(request))
        except (NotSent, PageError) as why:
            if _by_script(request):
                return _json(request, {"errors": {"test": why.message}}, 422)
            raise PageError(422, "Not sent", why.message) from None
        seen = request.may("read_mail")
        if _by_script(request):
            return _json(request, {"to": to, **({"id": str(sent)} if seen else {})})
        return request.redirect(f"{HOME}/emails/{sent}") if seen else request.redirect(f"{BROADCASTS}/{broadcast_id}/edit", done="tested")

    # Helpers

    async def _save(self, request: PageRequest, broadcast_id: UUID, draft: Draft, *, apart: bool) -> Saved:
        line = request.audit_entry("broadcast changed", str(broadcast_id))
        author, base = request.user_session.email, request.field("base")[:40]
        saved = await self.versions.save(request.account_id, broadcast_id, base, draft, author, [line], apart=apart)
        if isinstance(saved, Saved):
            return saved
        if saved in _REFUSED:
            field, sentence = _REFUSED[saved]
            raise Wrong({field: sentence})
        raise _refusal(saved)

    async def _contact(self, request: PageRequest, text: str) -> Any:
        if not text:
            return None
        contact = await self.previews.contact(request.account_id, text)
        if contact is None:
            raise PageError(422, "No such contact", "There is no contact with this address or ID.")
        return contact

    async def _domains(self, account_id: UUID, current: str) -> list[str]:
        """Those that can send, and the one that is chosen already."""
        ready = [domain.name for domain in (await self.domains.list(account_id))[0] if domain.may_send]
        return ready if not current or current in ready else [current, *ready]

    async def _variables(self, account_id: UUID) -> list[dict[str, str]]:
        found = (await self.properties.list(account_id, ALL))[0]
        own = [{"name": each.key, "fallback": "" if each.fallback is None else str(each.fallback)} for each in found]
        return [{"name": name, "fallback": ""} for name in merge.FIELDS] + own


def _found(opened: Opened | Refused) -> Opened:
    if isinstance(opened, Opened):
        return opened
    raise _refusal(opened)


def _reserving(request: PageRequest) -> Reserve:
    async def reserve(size: int) -> None:
        if not await request.http.turn(size):
            raise PageError(503, "Temporarily unavailable", "Too many long messages are being shown right now. Try again in a few seconds.")

    return reserve


def _refusal(why: Refused) -> PageError:
    if why == "status":
        return PageError(409, "Not a draft", "This broadcast isn’t a draft any more, so it can’t be edited.")
    return not_found("broadcast")


def _as_html(draft: Draft, view: str) -> bool:
    """Whether the HTML itself is edited: if somebody wants that, or it was made elsewhere."""
    if view in ("html", "blocks"):
        return view == "html"
    return draft.document is None and bool(draft.content.html or draft.content.text)


def _by_script(request: PageRequest) -> bool:
    return request.header("accept") == JSON


def _json(request: PageRequest, value: object, status: int = 200) -> bytes:
    return request.send(orjson.dumps(value), JSON, status)


def _view(request: PageRequest, listed: Listed | None) -> dict[str, object] | None:
    if listed is None:
        return None
    mine = listed.author == request.user_session.email
    return {"version": listed.version, "author": listed.author, "mine": mine, "at": listed.saved_at.isoformat()}
