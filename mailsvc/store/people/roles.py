"""The roles of members and what each permits. Data; the dashboard asks for the permission of a page. No SQL.

docs/security.md has the same table, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Role = Literal["admin", "developer", "marketing", "read-only", "billing"]
Permission = Literal[
    "see_figures",  # the home page and metrics
    "read_mail",  # emails with their content, logs, exports
    "send_mail",  # send, resend, reschedule and cancel emails, share them
    "see_setup",  # domains, API keys, webhooks, suppressions
    "change_setup",
    "see_audience",  # contacts, segments, topics, broadcasts
    "change_audience",
    "see_usage",  # what is used of the limits
    "see_plan",  # the plan and its price
    "administer",  # members, single sign-on, audit log, keeping and erasing data, API keys with full access
]

_SEE: tuple[Permission, ...] = ("see_figures", "read_mail", "see_setup", "see_audience", "see_usage")
PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    "admin": frozenset(get_args(Permission)),
    "developer": frozenset((*_SEE, "send_mail", "change_setup", "change_audience")),
    "marketing": frozenset(("see_figures", "see_audience", "change_audience", "see_usage")),
    "read-only": frozenset(_SEE),
    "billing": frozenset(("see_usage", "see_plan")),
}
ROLES: tuple[Role, ...] = tuple(PERMISSIONS)
NAMES: Mapping[Role, str] = {
    "admin": "Admin",
    "developer": "Developer",
    "marketing": "Marketing",
    "read-only": "Read-only",
    "billing": "Billing",
}
SUMMARIES: Mapping[Role, str] = {
    "admin": "everything, including members, security, data and the plan",
    "developer": "emails, domains, API keys, webhooks, contacts and broadcasts",
    "marketing": "contacts, broadcasts and metrics, but no other emails",
    "read-only": "sees what developers see, but changes nothing",
    "billing": "only the plan and usage",
}
# Of people who become members when they sign in with the account's provider for the first time: it changes nothing.
LEAST: Role = "read-only"


def permits(role: Role | None, permission: Permission) -> bool:
    return role is not None and permission in PERMISSIONS[role]
