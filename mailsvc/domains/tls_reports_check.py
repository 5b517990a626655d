"""Whether a domain asks for TLS reports (RFC 8460 §3). Pure. It is advice, and never prevents sending."""

from __future__ import annotations

import attrs

from mailsvc.domains.records import Record
from mailsvc.mail.authentication import tags, tls_reports
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.store.domains.values import RecordState


def advice(expected: Record, answer: Records[str] | NxDomain | Temporary) -> RecordState:
    """What was found, and what to do."""
    texts = tuple(text for text in answer.values if tls_reports.is_record(text)) if isinstance(answer, Records) else ()
    state = RecordState(expected.purpose, "TXT", expected.name, expected.value, False, "pending", texts)
    if isinstance(answer, Temporary):
        return attrs.evolve(state, problem="unanswered", message=f"DNS did not answer: {answer.reason}.")
    if not texts:
        message = "There is no record that asks for TLS reports. Add this one to learn whether mail to your domain arrives encrypted."
        return attrs.evolve(state, problem="missing", message=message)
    if len(texts) > 1:
        message = f"{expected.name} has {len(texts)} records for TLS reports, so senders ignore all of them. Keep only one."
        return attrs.evolve(state, problem="several", message=message)
    wanted = tls_reports.destinations(expected.value)
    found = tls_reports.destinations(texts[0])
    if not found:
        return attrs.evolve(state, problem="unreadable", message="The record for TLS reports has no valid rua. Replace it with this one.")
    state = attrs.evolve(state, status="verified", where=expected.name)
    if set(wanted) & set(found):
        return attrs.evolve(state, message="TLS reports arrive here.")
    better = tags.with_destination(texts[0], wanted[0])
    return attrs.evolve(state, expected=better, message=f"TLS reports go elsewhere. To also see them here, add {wanted[0]} to its rua.")
