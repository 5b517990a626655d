"""The look of the preference page, which unsubscribe links open, with a preview."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mailsvc.dashboard.audience.contacts import AUDIENCE, CHOICES
from mailsvc.dashboard.audience.forms import Read, multiline, read, rules
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.resources.broadcasts import unsubscribe
from mailsvc.http.resources.broadcasts.fields import PAGE, settings_of
from mailsvc.store.audience.listing import TopicOfContact
from mailsvc.store.audience.preferences import Standing
from mailsvc.store.broadcasts.settings import BroadcastSettings, StoredSettings

LOOK = f"{AUDIENCE}/page"
PREVIEW = f"{LOOK}/preview"
# The preview has an opaque origin: no scripts, forms or cookies.
CSP = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src https:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"


@attrs.define(eq=False)
class PreferencePages:
    app = section_app()
    context: PageContext
    audience: AudienceContext
    settings: StoredSettings
    bounds: Bounds

    @page(app, LOOK, access="see_audience")
    async def show(self, request: PageRequest) -> bytes:
        return self._shown(request, _values(await self.settings.get(request.account_id)), done=request.query("done") == "changed")

    def _shown(self, request: PageRequest, values: Mapping[str, str], status: int = 200, **more: object) -> bytes:
        shown: dict[str, object] = {"errors": {}, "done": False}
        texts = {"title": unsubscribe.TITLE, "message": unsubscribe.MESSAGE}
        return request.render("audience/page.html", status, values=values, colors=list(unsubscribe.COLORS), texts=texts, **shown | more)

    @page(app, LOOK, "POST", access="change_audience")
    async def change(self, request: PageRequest) -> bytes:
        found = self._read(request)
        if found.errors:
            return self._shown(request, _typed(request), 422, errors=found.errors)
        settings = settings_of(await self.settings.get(request.account_id), found.values)
        await self.settings.put(request.account_id, settings, [request.audit_entry("preference page changed", ", ".join(found.values))])
        return request.redirect(LOOK, done="changed")

    @page(app, PREVIEW, access="see_audience")
    async def preview(self, request: PageRequest) -> bytes:
        """As it is."""
        return await self._preview(request, await self.settings.get(request.account_id))

    @page(app, PREVIEW, "POST", access="change_audience")
    async def try_out(self, request: PageRequest) -> bytes:
        """As the form says, without saving it. What is wrong is left out."""
        return await self._preview(request, settings_of(await self.settings.get(request.account_id), self._read(request).values))

    def _read(self, request: PageRequest) -> Read:
        """The fields to change; None for those that have the default."""
        typed = _typed(request)
        given = {name: None if value == unsubscribe.COLORS.get(name.removesuffix("_color")) else value for name, value in typed.items()}
        return read(PAGE.fields, given, rules(request, self.bounds))

    async def _preview(self, request: PageRequest, settings: BroadcastSettings) -> bytes:
        topics, _ = await self.audience.topics.list(request.account_id, CHOICES)
        shown = [TopicOfContact(t.id, t.name, t.description, t.subscribed, t.public, t.created_at) for t in topics if t.public][::-1]
        content = unsubscribe.preview(settings, Standing(None, False, shown), await self.settings.sender(request.account_id))
        return request.send(content, "text/html; charset=utf-8", csp=CSP)


def _typed(request: PageRequest) -> dict[str, Any]:
    colors = {f"{name}_color": request.field(f"{name}_color").lower() for name in unsubscribe.COLORS}
    return {"title": request.single_line("title"), "message": multiline(request, "message"), "logo": request.field("logo"), **colors}


def _values(settings: BroadcastSettings) -> dict[str, str]:
    colors = {f"{name}_color": settings.colors.get(name, default) for name, default in unsubscribe.COLORS.items()}
    return {"title": settings.title or "", "message": settings.message or "", "logo": settings.logo or "", **colors}
