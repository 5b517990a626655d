"""Topics: the list, creating one, its settings with the double opt-in, deleting."""

from __future__ import annotations

from typing import Any

import attrs

from mailsvc.dashboard.audience import confirmation
from mailsvc.dashboard.audience.contacts import AUDIENCE
from mailsvc.dashboard.audience.forms import full, read, rules
from mailsvc.dashboard.audience.undo import put_back, undo_path
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience import fields
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.store.audience.values import Full, Topic
from mailsvc.store.paging import Page

TOPICS = f"{AUDIENCE}/topics"
ONE = f"{TOPICS}/<text>"
PAGE = 50
DONE = {
    "added": "The topic was created.",
    "changed": "The topic was changed.",
    "deleted": "The topic was deleted.",
    "restored": "The topic is back.",
}
NEEDS_OPT_OUT = "Contacts who made no choice are subscribed to this topic without having confirmed. Create one with another default."


@attrs.define(eq=False)
class TopicPages:
    app = section_app()
    context: PageContext
    audience: AudienceContext
    bounds: Bounds

    @page(app, TOPICS, access="see_audience")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    async def _listed(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        found, more = await self.audience.topics.list(request.account_id, Page(PAGE, after))
        shown: dict[str, object] = {"errors": {}, "typed": {}}
        return request.render(
            "audience/topics.html", status, found=found, first=after is None, older=f"{TOPICS}?after={found[-1].id}" if more else None,
            done=DONE.get(request.query("done"), ""),
            undo_at=undo_path(request, TOPICS), **shown | values,
        )  # fmt: skip

    @page(app, TOPICS, "POST", access="change_audience")
    async def add(self, request: PageRequest) -> bytes:
        typed = {**_typed(request), "default_subscription": request.field("default_subscription")}
        found = read(fields.CREATE_TOPIC.fields, typed, rules(request, self.bounds))
        if found.errors:
            return await self._listed(request, 422, errors=found.errors, typed=typed)
        values, line = found.values, request.audit_entry("topic created", typed["name"])
        subscribed, public = values["default_subscription"] == "opt_in", values["visibility"] == "public"
        try:
            added = await self.audience.topics.add(
                request.account_id, values["name"], subscribed, values["description"], public, None, [line]
            )
        except Full as wrong:
            return await self._listed(request, 422, errors={"name": full(wrong)}, typed=typed)
        self.audience.changed()
        return request.redirect(f"{TOPICS}/{added.id}", done="added")

    @page(app, ONE, access="see_audience")
    async def show(self, request: PageRequest, text: str) -> bytes:
        topic = await self._own(request, text)
        return self._shown(request, topic, optin=confirmation.stored(topic.confirmation))

    async def _own(self, request: PageRequest, text: str) -> Topic:
        found = await self.audience.topics.get(request.account_id, request.uuid(text, "topic"))
        if found is None:
            raise not_found("topic")
        return found

    def _shown(self, request: PageRequest, topic: Topic, status: int = 200, **values: object) -> bytes:
        typed = {"name": topic.name, "description": topic.description or "", "visibility": "public" if topic.public else "private"}
        shown: dict[str, object] = {"errors": {}, "typed": typed}
        return request.render(
            "audience/topic.html", status, topic=topic, done=DONE.get(request.query("done"), ""), labels=confirmation.LABELS,
            long=confirmation.LONG, **shown | values,
        )  # fmt: skip

    @page(app, f"{ONE}/change", "POST", access="change_audience")
    async def change(self, request: PageRequest, text: str) -> bytes:
        topic, typed, limits = await self._own(request, text), _typed(request), rules(request, self.bounds)
        found, optin = read(fields.CREATE_TOPIC.fields, typed, limits), confirmation.given(request, limits)
        errors = {**found.errors, **optin.errors}
        if optin.on and topic.subscribed:
            errors[confirmation.ON] = NEEDS_OPT_OUT
        if errors:
            return self._shown(request, topic, 422, errors=errors, typed=typed, optin=optin)
        changes: dict[str, Any] = {name: found.values[name] for name in ("name", "description")}
        changes |= {"public": found.values["visibility"] == "public", "confirmation": optin.wording}
        line = request.audit_entry("topic changed", typed["name"])
        if await self.audience.topics.change(request.account_id, topic.id, changes, [line]) is None:
            raise not_found("topic")
        self.audience.changed()
        return request.redirect(f"{TOPICS}/{topic.id}", done="changed")

    @page(app, f"{ONE}/restore", "POST", access="change_audience")
    async def restore(self, request: PageRequest, text: str) -> bytes:
        """Undo a deletion."""
        topic_id = request.uuid(text, "topic")
        line = request.audit_entry("topic restored", str(topic_id))
        restored = await put_back(self.audience.topics.restore(request.account_id, topic_id, [line]))
        self.audience.changed()
        return request.redirect(f"{TOPICS}/{restored.id}", done="restored")

    @page(app, f"{ONE}/delete", "POST", access="change_audience")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        topic = await self._own(request, text)
        line = request.audit_entry("topic deleted", topic.name)
        if await self.audience.topics.remove(request.account_id, topic.id, [line]) is None:
            raise not_found("topic")
        self.audience.changed()
        return request.redirect(TOPICS, done="deleted", undo=str(topic.id))


def _typed(request: PageRequest) -> dict[str, str]:
    return {name: request.single_line(name) for name in ("name", "description", "visibility")}
