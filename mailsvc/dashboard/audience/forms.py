"""Reads the forms of the audience with the fields of the API, so that both have the same limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from mailsvc.dashboard.page import PageRequest
from mailsvc.http.fields import Bounds, Field, Rules
from mailsvc.http.problem import Problem
from mailsvc.store.audience.values import By, Contact, Full
from mailsvc.store.people.audit import Line

MISSING = "Enter a value."


@attrs.frozen
class Read:
    """The valid values, None for those that are not set; and what is wrong with the others. Both by the name of the field."""

    values: Mapping[str, Any]
    errors: Mapping[str, str]


def read(fields: Mapping[str, Field], given: Mapping[str, object], rules: Rules) -> Read:
    """Only the fields that are given."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, value in given.items():
        field = fields[name]
        try:
            if value is not None and not field.absent(value):
                values[name] = field.read(value, name, rules)
            elif field.required:
                errors[name] = MISSING
            else:
                values[name] = None
        except Problem as wrong:
            errors[name] = said(wrong, name)
    return Read(values, errors)


def said(wrong: Problem, name: str) -> str:
    """What the API says about a field, for a message beside it."""
    return wrong.message.replace(f"The `{name}` field", "This field").replace(f"Invalid `{name}` field. ", "")


def full(wrong: Full) -> str:
    return f"There are {wrong.most} {wrong.kind}, which is the maximum. Delete one first."


def rules(request: PageRequest, bounds: Bounds) -> Rules:
    return Rules(request.context.now(), bounds, natural=False)


def by(request: PageRequest) -> By:
    """The evidence of a change by a member."""
    return By("dashboard", {"user_id": str(request.user_session.user_id), "ip": request.address})


def about(request: PageRequest, action: str) -> Callable[[Contact], Sequence[Line]]:
    """An entry for the audit log. It has the ID, because the log outlives the address."""
    return lambda contact: [request.audit_entry(action, str(contact.id))]


def multiline(request: PageRequest, name: str) -> str:
    """A field whose line breaks count. Browsers send them as CRLF."""
    return request.field(name).replace("\r\n", "\n")
