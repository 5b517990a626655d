"""Intake with traces: used instead of `intake.Intake` if tracing is on. The trace of each email is stored with its envelope."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mailsvc.incoming import Incoming
from mailsvc.intake import Admission, Admitted, Intake, Key
from mailsvc.policy import Refusal
from mailsvc.runtime.tracing import Tracing
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.audit import Line


@attrs.define(eq=False, kw_only=True)
class TracedIntake(Intake):
    """A span for each submission, which continues the trace of the request that it came with."""

    tracing: Tracing

    async def submit(
        self, caller: Caller, emails: Sequence[Incoming], key: Key | None = None, *, permissive: bool = False, lines: Sequence[Line] = ()
    ) -> Admission:
        span = self.tracing.begin("accept", self.clock(), emails[0].trace if emails else None)
        traced = [attrs.evolve(each, trace=span.traceparent if span.recorded else None) for each in emails]
        result: Admission | None = None
        try:
            result = await super().submit(caller, traced, key, permissive=permissive, lines=lines)
            return result
        finally:
            accepted = [each for each in result.results if not isinstance(each, Refusal)] if isinstance(result, Admitted) else []
            facts: dict[str, str | int] = {"mailsvc.account.id": str(caller.account_id), "mailsvc.emails": len(accepted)}
            if len(accepted) == 1:
                facts["mailsvc.email.id"] = str(accepted[0])
            error = None if accepted else "not stored" if result is None else type(result).__name__
            span.end(self.clock(), facts, error)
