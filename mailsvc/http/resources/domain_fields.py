"""Sending domains in requests and responses. What makes the responses: `domains/views`, because events have the same."""

from __future__ import annotations

from mailsvc.domains import names
from mailsvc.domains.tracking import LABEL
from mailsvc.http.fields import Choice, Flag, Record, Text, fixed
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
    "open_tracking": Flag("Whether opens are tracked, with an invisible image in the HTML. By default false.", True),
    "click_tracking": Flag(
        "Whether clicks are tracked: links in the HTML lead to their target through this server. By default false.", True
    ),
    "tracking_subdomain": Text(
        "The label of the subdomain of tracked links. It can be changed, but not removed; former ones stay served. Until its record is "
        "verified, links have the subdomain before; without one, nothing is tracked. By default, links have the host of this service.",
        "links",
        pattern=names.RETURN_PATH,
        says=LABEL,
        parse=str.lower,
    ),
}
CREATE = Record(
    title="CreateDomain",
    fields={
        "name": Text("The domain name.", "example.com", required=True),
        "region": Text("Where its mail is sent from. By default the account's home region, otherwise the operator's.", "us-east-1"),
        "custom_return_path": Text(
            "The label of the subdomain that bounces come back to. By default `send`.",
            "send",
            pattern=names.RETURN_PATH,
            says=LABEL,
        ),
        **_CHANGES,
    },
)
UPDATE = Record(title="UpdateDomain", fields={**_CHANGES, **fixed(CREATE, "name", "region", "custom_return_path")})

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
        "name": text("The name, relative to the registered domain; of `Tracking`, the full name.", "send"),
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
        "open_tracking": flag("Whether opens are tracked.", False),
        "click_tracking": flag("Whether clicks are tracked.", False),
        "capabilities": one(CAPABILITIES, "What the domain is used for."),
        "tls": choice("`enforced`: mail to servers without TLS bounces.", TLS),
        "custom_return_path": text("The label of the subdomain that bounces come back to.", "send"),
        "name_ascii": optional(text("The name in ASCII, if it has other characters.", "xn--bcher-kva.example")),
        "warning": optional(text("What is suspicious about the name.", "The name can be mistaken for another one.")),
        "failure_reason": optional(text("Why the domain is no longer verified.", "Another account has verified it.")),
    },
)
_RECORDS = {
    "tracking_subdomain": maybe(text("The label of the subdomain of tracked links.", "links")),
    "tracking_host": maybe(text("The host of tracked links in new emails. Null: nothing is tracked.", "links.example.com")),
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
_SOURCE = View(
    "ReportedSource",
    {
        "address": maybe(
            text("The IP address. Null: all sources that were not kept separately.", "192.0.2.10", lambda row: row.address or None)
        ),
        "ours": flag("Whether it belongs to this service.", True),
        "messages": count("Messages that were reported.", 15),
        "passed": count("Those that passed DMARC.", 12),
        "failed": count("Those that failed DMARC.", 3),
        "dkim": count("Those with a DKIM signature of the domain in From.", 12),
        "spf": count("Those that passed SPF for the domain in From.", 12),
        "refused": count("Those that were quarantined or rejected.", 3),
        "header_from": texts("Domains in From, up to five.", ["example.com"]),
        "signed_by": texts("Domains of DKIM signatures, up to five.", ["example.com"]),
        "mail_from": texts("Domains of envelope senders, up to five.", ["send.example.com"]),
    },
)
_TLS_RESULT = View(
    "ReportedTlsResult",
    {
        "policy_domain": text("The domain of the policy.", "example.com"),
        "policy": text("`sts`, `tlsa` or `no-policy-found`.", "sts"),
        "host": maybe(text("The receiving server, if it is known.", "mx1.example.com", lambda row: row.host or None)),
        "result": text("`success`, or a result type of RFC 8460.", "certificate-expired"),
        "sessions": count("Sessions with this result.", 100),
    },
)
_REPORTER = View(
    "Reporter",
    {
        "kind": choice("The kind of its reports.", ("dmarc", "tls")),
        "name": text("The organization, as it calls itself. Nobody verifies it.", "receiver.example"),
        "reports": count("The number of reports.", 30),
        "until": time("The end of the period of its last report."),
    },
)
_DMARC = View(
    "DmarcResults",
    {
        "messages": count("Messages that were reported.", 22),
        "passed": count("Those that passed DMARC.", 14),
        "failed": count("Those that failed DMARC.", 8),
        "own_failures": count("Those of this service that failed DMARC. Should be 0.", 3),
        "source_count": count("The number of sources.", 3),
        "sources": many(_SOURCE, "The sources, those that fail first; up to 100."),
    },
)
_TLS = View(
    "TlsResults",
    {
        "sessions": count("Sessions that were reported.", 5633),
        "successes": count("Those that were encrypted as the policy requires.", 5330),
        "failures": count("The others.", 303, "tls_failures"),
        "results": many(_TLS_RESULT, "The results, failures first; up to 100.", "tls"),
    },
)
REPORTS = View(
    "DomainReports",
    {
        "object": const("domain_reports", "Always `domain_reports`."),
        "domain_id": uuid("The domain's ID."),
        "since": time("The beginning of the first day."),
        "dmarc": one(_DMARC, "What receivers report about mail from the domain.", lambda summary: summary),
        "tls": one(_TLS, "What senders report about TLS connections to the domain's mail servers.", lambda summary: summary),
        "reporters": many(_REPORTER, "Who sent reports; up to 100."),
    },
)
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
