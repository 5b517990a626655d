"""Sending one email from a page: its ID from intake's answer, or a sentence that says why it was not sent."""

from __future__ import annotations

from uuid import UUID

import attrs

from mailsvc.intake import Admission, Admitted, Rejected
from mailsvc.settings.plans import Exhausted

SUSPENDED = "This account is suspended and can’t send."


@attrs.frozen
class NotSent(Exception):
    """`message`: why, for the user. `status`: of the response, if it is a page of its own."""

    message: str
    status: int = 422


def sent(answer: Admission, repeated: str) -> UUID:
    """The ID of the email. `repeated`: the message if the same form was submitted before. Raises NotSent."""
    match answer:
        case Admitted((UUID() as email_id, *_)):
            return email_id
        case Rejected(refusals):
            raise NotSent(refusals[0].message)
        case Exhausted() as exhausted:
            raise NotSent(exhausted.message, 422 if exhausted.too_large else 429)
        case _:
            raise NotSent(repeated, 409)
