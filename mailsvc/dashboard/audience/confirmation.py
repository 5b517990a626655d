"""The part of a form that turns a double opt-in on: the email that asks, and the page that its link opens. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.audience.double_opt_in import LINK
from mailsvc.dashboard.audience.forms import multiline, read
from mailsvc.dashboard.page import PageRequest
from mailsvc.http.fields import Rules
from mailsvc.http.problem import Problem
from mailsvc.http.resources.audience.fields import DOUBLE_OPT_IN
from mailsvc.store.audience.values import Confirmation

ON = "double_opt_in"  # the field that turns it on
LABELS = {
    "from": "Sender",
    "subject": "Subject",
    "text": "Plain text",
    "html": "HTML",
    "title": "Title of the page",
    "message": "Message on the page",
    "button": "Button",
    "done": "Message after the button was pressed",
}
LONG = ("text", "html", "message", "done")
DEFAULTS = {
    "from": "",
    "subject": "Please confirm your subscription",
    "text": f"Please confirm your subscription:\n\n{LINK}\n\nIf you did not ask for it, ignore this email.\n",
    "html": "",
    "title": "Confirm your subscription",
    "message": "Press the button to confirm your subscription.",
    "button": "Confirm",
    "done": "Thank you. Your subscription is confirmed.",
}


@attrs.frozen
class Given:
    """What a form says. `wording`: None if it is off, or wrong. `typed`: for showing the form again."""

    on: bool
    wording: Confirmation | None
    typed: Mapping[str, str]
    errors: Mapping[str, str]


def given(request: PageRequest, rules: Rules) -> Given:
    typed = {name: multiline(request, name) for name in LABELS}
    if request.field(ON) != "on":
        return Given(False, None, typed, {})
    values = {name: value or None for name, value in typed.items()}
    found = read(DOUBLE_OPT_IN.fields, values, rules)
    if found.errors:
        return Given(True, None, typed, found.errors)
    try:
        return Given(True, DOUBLE_OPT_IN.read(values, ON, rules), typed, {})
    except Problem:
        return Given(True, None, typed, {"text": f"The text or the HTML must contain {LINK}, where the link goes."})


def stored(wording: Confirmation | None) -> Given:
    """The form as it is shown first."""
    if wording is None:
        return Given(False, None, DEFAULTS, {})
    values = attrs.asdict(wording)
    return Given(True, wording, {name: values["sender" if name == "from" else name] or "" for name in LABELS}, {})
