"""What an import does with its rows: checks segments and topics, defines the properties that a file brings. For API and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.audience.import_plan import Columns
from mailsvc.http.problem import Problem, invalid, not_found
from mailsvc.http.resources.audience.contacts import written
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.store.audience.import_values import Orders
from mailsvc.store.audience.values import Choice, Property, Taken
from mailsvc.store.paging import ALL
from mailsvc.store.people.audit import Line


@attrs.define(eq=False)
class ImportOrders:
    """`line`: makes an entry for the audit log from an action and its subject."""

    context: AudienceContext
    account_id: UUID
    line: Callable[[str, str], Line]

    async def make(self, columns: Columns, update: bool, segments: Sequence[UUID], topics: Sequence[Choice]) -> Orders:
        """Raises Problem."""
        await self._check(segments, topics)
        definitions, _ = await self.context.properties.list(self.account_id, ALL)
        known = {each.key: each for each in definitions}
        for key, (_, kind) in columns.properties.items():
            if key not in known:
                known[key] = await self._define(key, kind)
        properties = {str(known[key].number): (at, known[key].type) for key, (at, _) in columns.properties.items()}
        plan = attrs.evolve(columns.plan, properties=properties)
        return Orders(plan.stored(), update, segments, topics, plan.width)

    async def _check(self, segments: Sequence[UUID], topics: Sequence[Choice]) -> None:
        """Segments and topics exist, and need no confirmation, which a file cannot give."""
        for segment_id in segments:
            segment = await self.context.segments.get(self.account_id, segment_id)
            if segment is None:
                raise not_found("Audience")
            if segment.confirmation is not None:
                raise invalid("The `segments` field has a segment with `double_opt_in`. Turn that off for the time of the import.")
        for each in topics:
            topic = await self.context.topics.get(self.account_id, each.topic_id)
            if topic is None:
                raise not_found("Topic")
            if topic.confirmation is not None and each.subscribed:
                raise invalid("The `topics` field has a topic with `double_opt_in`. Turn that off for the time of the import.")

    async def _define(self, key: str, kind: Any) -> Property:
        """A property that the file brings."""
        line = self.line("contact property created", key)
        try:
            return await written(self.context.properties.add(self.account_id, key, kind, None, [line]))
        except Taken:
            raise Problem(409, "validation_error", "The contact properties changed at the same time. Try again.") from None
