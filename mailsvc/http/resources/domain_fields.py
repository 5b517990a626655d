"""Sending domains in requests and responses. What makes the responses: `domains/views`, because events have the same."""

from __future__ import annotations

from mailsvc.domains import names
from mailsvc.http.fields import Choice, Off, Record, Text, Wrong
from mailsvc.http.views import (
    View,
    acknowledged,
    choice,
    const,
    count,
    flag,
    iso,
    many,
    maybe,
    one,
    optional,
    text,
    texts,
    time,
    uuid,
)

SWITCH = ("enabled", "disabled")
TLS = ("opportunistic", "enforced")

# Requests


def _no_tracking(name: str) -> None:
    raise Wrong("cannot be set: this server does not track clicks")


_CHANGES = {
    "tls": Choice("`opportunistic`: use TLS where it is offered. `enforced`: never send without TLS.", "opportunistic", words=TLS),
    "capabilities": Record(
        "What the domain is used for. At least one has to be enabled.",
        title="DomainCapabilitiesChange",
        fields={
            "sending": Choice("Whether the domain can send.", "enabled", words=SWITCH),
            "receiving": Choice("Whether the domain receives.", "disabled", words=SWITCH),
        },
    ),
    "open_tracking": Off("This server does not track opens."),
    "click_tracking": Off("This server does not track clicks."),
    "tracking_subdomain": Text("This server does not track clicks.", "", more={"maxLength": 0}, parse=_no_tracking),
}
CREATE = Record(
    title="CreateDomain",
    fields={
        "name": Text("The domain name.", "example.com", required=True),
        "region": Text("Where its mail is sent from. By default the operator's region.", "us-east-1"),
        "custom_return_path": Text(
            "The label of the subdomain that bounces come back to. By default `send`.",
            "send",
            pattern=names.RETURN_PATH,
            says="must have 1 to 63 letters, digits and hyphens, start with a letter and not end with a hyphen",
        ),
        **_CHANGES,
    },
)
UPDATE = Record(title="UpdateDomain", fields=_CHANGES)

# Responses

_CHECK = View(
    "DomainRecordCheck",
    {
        "found": texts("What DNS has instead.", ["v=spf1 -all"]),
        "where": maybe(text("The DNS name that was looked up.", "send.example.com")),
        "problem": maybe(text("The kind of problem. For programs.", "missing")),
        "message": maybe(text("What is wrong and how to fix it.", "There is no MX record at send.example.com. Add it.")),
    },
)
_RECORD_STATES = ("verified", "not_started", "pending", "failed", "temporary_failure")
RECORD = View(
    "DomainRecord",
    {
        "record": text("What the record is for.", "SPF"),
        "name": text("The name, relative to the domain.", "send"),
        "type": choice("The type.", ("TXT", "MX", "CNAME", "CAA")),
        "ttl": text("The time to live.", "Auto"),
        "status": choice("Whether DNS has the record.", _RECORD_STATES),
        "value": text("The value to publish.", "v=spf1 a:out.example.net ~all"),
        "priority": optional(count("The priority of an MX record.", 10)),
        "check": optional(one(_CHECK, "The result of the last check.")),
    },
)
CAPABILITIES = View(
    "DomainCapabilities",
    {
        "sending": choice("Whether the domain can send.", SWITCH),
        "receiving": choice("Whether the domain receives.", SWITCH, example="disabled"),
    },
)
_STATES = ("verified", "not_started", "pending", "failed", "partially_verified", "partially_failed", "temporary_failure")
ROW = View(
    "DomainRow",
    {
        "id": uuid("The domain's ID."),
        "name": text("The domain name.", "example.com"),
        "status": choice("Whether its records are published.", _STATES),
        "created_at": time("When it was added."),
        "region": text("Where its mail is sent from.", "us-east-1"),
        "open_tracking": flag("Always false: this server does not track.", False),
        "click_tracking": flag("Always false: this server does not track.", False),
        "capabilities": one(CAPABILITIES, "What the domain is used for."),
        "tls": choice("`enforced`: mail to servers without TLS bounces.", TLS),
        "custom_return_path": text("The label of the subdomain that bounces come back to.", "send"),
        "name_ascii": optional(text("The name in ASCII, if it has other characters.", "xn--bcher-kva.example")),
        "warning": optional(text("What is suspicious about the name.", "The name can be mistaken for another one.")),
        "failure_reason": optional(text("Why the domain is no longer verified.", "Another account has verified it.")),
    },
)
_RECORDS = {
    "records": many(RECORD, "The DNS records to publish."),
    "advice": many(RECORD, "Records that are recommended, but not required."),
}
CREATED = View("CreatedDomain", {**ROW.values, **_RECORDS})
_HISTORY = View(
    "DomainHistory",
    {"created_at": time("When it happened."), "message": text("What happened.", "The domain was added.")},
)
DOMAIN = View(
    "Domain",
    {
        "object": const("domain", "Always `domain`."),
        **ROW.values,
        **_RECORDS,
        "checked_at": maybe(time("When DNS was last checked.")),
        "next_check_at": maybe(time("When DNS will be checked again.")),
        "history": many(_HISTORY, "What happened to the domain."),
    },
)
EVENT_DATA = View("DomainEventData", {**ROW.values, "created_at": iso("When it was added."), **_RECORDS})
CHANGED = acknowledged("domain", "ChangedDomain", "The domain's ID.")
DELETED = acknowledged("domain", "DeletedDomain", "The domain's ID.", deleted=const(True, "Always true."))
_CLAIM_RECORD = View(
    "DomainClaimRecord",
    {
        "type": const("TXT", "The type."),
        "name": text("The name.", "example.com"),
        "value": text("The value to publish.", "mailsvc-domain-verification=4f1c"),
        "ttl": text("The time to live.", "Auto"),
    },
)
_BLOCKED = ("recent_owner_activity", "grace_period", "pending_scheduled_emails")
CLAIM = View(
    "DomainClaim",
    {
        "object": const("domain_claim", "Always `domain_claim`."),
        "id": uuid("The claim's ID."),
        "name": text("The domain name.", "example.com"),
        "status": choice("The state.", ("pending", "verified", "completed", "blocked", "expired", "superseded", "canceled", "failed")),
        "domain_id": uuid("The domain's ID."),
        "region": text("Where its mail would be sent from.", "us-east-1"),
        "record": one(_CLAIM_RECORD, "The DNS record that proves the claim."),
        "blocked_reason": maybe(choice("Why the claim is blocked.", _BLOCKED)),
        "failure_reason": maybe(text("Why the claim failed.", "The record was not found in time.")),
        "created_at": time("When it was made."),
        "expires_at": time("When it expires."),
    },
)
