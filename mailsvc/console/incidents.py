"""Incidents: what operators write for the public status page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import attrs

from mailsvc.console.serving import HOME, ConsoleContext, ConsolePage, page
from mailsvc.dashboard.page import PageError, not_found
from mailsvc.store.console.incidents import Impact, Incidents

INCIDENTS = f"{HOME}/incidents"
TITLE, TEXT = 120, 2000  # characters
IMPACTS = {"degraded": "Degraded", "down": "Down", "maintenance": "Maintenance"}
MISSING = {
    "title": "Enter a title.",
    "impact": "Choose an impact.",
    "components": "Choose at least one component.",
    "text": "Write what customers should know.",
}
_DONE = {"begun": "Incident added.", "noted": "Note added.", "ended": "Incident ended."}


@attrs.define(eq=False)
class IncidentPages:
    """`components`: those that the status page lists."""

    context: ConsoleContext
    incidents: Incidents
    components: Sequence[str]

    @page(INCIDENTS)
    async def shown(self, request: ConsolePage) -> bytes:
        return await self._shown(request)

    async def _shown(self, request: ConsolePage, status: int = 200, errors: Mapping[str, str] | None = None) -> bytes:
        return request.render(
            "incidents.html", status, incidents=await self.incidents.recent(), components=self.components, impacts=IMPACTS,
            done=_DONE.get(request.query("done"), ""), errors=errors or {}, longest_title=TITLE, longest_text=TEXT,
        )  # fmt: skip

    @page(INCIDENTS, "POST")
    async def begin(self, request: ConsolePage) -> bytes:
        title, text, impact = request.single_line("title")[:TITLE], _text(request), request.field("impact")
        components = [name for name in self.components if request.field(f"component:{name}") == "on"]
        given = {"title": bool(title), "impact": impact in IMPACTS, "components": bool(components), "text": bool(text)}
        errors = {name: MISSING[name] for name, there in given.items() if not there}
        if errors:
            return await self._shown(request, 422, errors)
        lines = request.lines("incident added", f"{title}: {impact}, {', '.join(components)}")
        await self.incidents.begin(title, cast(Impact, impact), components, text, lines)
        return request.redirect(INCIDENTS, done="begun")

    @page(f"{INCIDENTS}/<text>/note", "POST")
    async def note(self, request: ConsolePage, text: str) -> bytes:
        incident_id, end, written = request.uuid(text, "incident"), request.field("end") == "on", _text(request)
        if not written:
            raise PageError(422, "Text missing", MISSING["text"])
        lines = request.lines("incident ended" if end else "incident note added", str(incident_id))
        if not await self.incidents.note(incident_id, written, end, lines):
            raise not_found("incident")
        return request.redirect(INCIDENTS, done="ended" if end else "noted")


def _text(request: ConsolePage) -> str:
    return request.field("text").replace("\r\n", "\n")[:TEXT]
