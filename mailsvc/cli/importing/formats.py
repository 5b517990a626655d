"""The exports of other services, as data: the lists in the answers of their APIs, and the columns of their CSV files.

Names are compared in lower case with underscores; `a.b` is the field b of the object a. The first format that fits is used, so those with
more fields come first. What reads them: importing/reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from mailsvc.cli.importing.records import Kind
from mailsvc.store.events.suppressions import Origin

YES, NO = frozenset({"true", "1", "yes", "unsubscribed"}), frozenset({"false", "0", "no"})


@attrs.frozen
class Format:
    """One kind of rows.

    `lists`: the keys of the list in JSON, "" for a list that is the whole document. `needs`: fields that a row of this kind always has.
    `fields`: by our name, the name of their field. `origin`: of a suppression, unless `origins` has the value of its field `origin`.
    `gone`: the values of the field `unsubscribed` that mean that somebody has unsubscribed. `all_unsubscribed`: everybody in the file has.
    `kinds`: the field with the kinds of mail that a suppression is about; it is about all mail if there is none, or an asterisk.
    `left`: the fields of a suppression, in lower case, that mean that somebody has unsubscribed from broadcasts, and not from all mail.
    """

    kind: Kind
    lists: Sequence[str]
    needs: Sequence[str]
    fields: Mapping[str, str]
    origin: Origin = "manual"
    origins: Mapping[str, Origin] = attrs.field(factory=dict)
    gone: frozenset[str] = YES
    all_unsubscribed: bool = False
    kinds: str = ""
    left: Mapping[str, str] = attrs.field(factory=dict)


def _suppressions(lists: Sequence[str], needs: Sequence[str], email: str, origin: Origin = "manual", **more: object) -> Format:
    fields = {"email": email, "origin": str(more.get("by", ""))}
    return Format("suppressions", lists, needs, fields, origin, more.get("origins", {}), left=more.get("left", {}))  # type: ignore[arg-type]


def _named(kind: Kind, lists: Sequence[str], needs: Sequence[str], name: str, id_: str = "id") -> Format:
    return Format(kind, lists, needs, {"name": name, "id": id_})


_NAMES = {"email": "email", "first_name": "first_name", "last_name": "last_name"}
_MAILCHIMP_CSV = {"email": "email_address", "first_name": "first_name", "last_name": "last_name", "tags": "tags"}

FORMATS: Mapping[str, Sequence[Format]] = {
    # GET /suppressions, /contacts, /segments, /audiences, /domains; the CSV file of contacts
    "resend": (
        _suppressions(["data"], ["email", "origin"], "email", by="origin", origins={"bounce": "bounce", "complaint": "complaint"}),
        Format("contacts", ["data"], ["email", "unsubscribed"], {**_NAMES, "unsubscribed": "unsubscribed"}),
        _named("domains", ["data"], ["name", "region"], "name"),
        _named("segments", ["data"], ["id", "name"], "name"),
    ),
    # GET /message-streams/…/suppressions/dump and its CSV file; GET /domains
    "postmark": (
        _suppressions(
            ["suppressions"],
            ["emailaddress", "suppressionreason"],
            "emailaddress",
            by="suppressionreason",
            origins={"hardbounce": "bounce", "spamcomplaint": "complaint"},
            left={"suppressionreason": "manualsuppression", "origin": "recipient"},
        ),
        _named("domains", ["domains"], ["id", "name"], "name"),
    ),
    # aws sesv2 list-suppressed-destinations, list-contacts, list-contact-lists, list-email-identities
    "ses": (
        _suppressions(
            ["suppresseddestinationsummaries"],
            ["emailaddress", "reason"],
            "emailaddress",
            by="reason",
            origins={"bounce": "bounce", "complaint": "complaint"},
        ),
        Format("contacts", ["contacts"], ["emailaddress"], {"email": "emailaddress", "unsubscribed": "unsubscribeall"}),
        _named("segments", ["contactlists"], ["contactlistname"], "contactlistname", ""),
        _named("domains", ["emailidentities"], ["identitytype", "identityname"], "identityname", ""),
    ),
    # GET /v3/suppression/…, /v3/asm/suppressions/global, their CSV files; /v3/marketing/contacts, /lists; /v3/whitelabel/domains
    "sendgrid": (
        Format("contacts", ["result", "contacts"], ["email", "first_name"], {**_NAMES, "ids": "list_ids"}),
        _suppressions([""], ["email", "reason"], "email", "bounce"),
        _suppressions([""], ["email", "ip"], "email", "complaint"),
        _suppressions(["", "suppressions"], ["email", "created"], "email"),
        _named("segments", ["result"], ["name", "contact_count"], "name"),
        _named("domains", ["", "result"], ["domain", "subdomain"], "domain"),
    ),
    # GET /v3/…/bounces, complaints, unsubscribes and their CSV files; /v3/lists/…/members, /v3/lists, /v4/domains
    "mailgun": (
        _suppressions(["items"], ["address", "code"], "address", "bounce"),
        Format(
            "contacts", ["items"], ["address", "subscribed"], {"email": "address", "name": "name", "unsubscribed": "subscribed"}, gone=NO
        ),
        _named("segments", ["items"], ["address", "members_count"], "name", "address"),
        attrs.evolve(_suppressions(["items"], ["address", "tags"], "address"), kinds="tags"),
        _suppressions(["items"], ["address", "created_at"], "address", "complaint"),
        _named("domains", ["items"], ["name", "state"], "name"),
    ),
    # GET /lists/…/members, /lists, /lists/…/segments, /verified-domains; the three CSV files of an audience
    "mailchimp": (
        _suppressions([], ["email_address", "clean_time"], "email_address", "bounce"),
        Format("contacts", [], ["email_address", "unsub_time"], _MAILCHIMP_CSV, all_unsubscribed=True),
        Format("contacts", [], ["email_address", "optin_time"], _MAILCHIMP_CSV),
        Format(
            "contacts",
            ["members"],
            ["email_address", "status"],
            {
                "email": "email_address",
                "first_name": "merge_fields.fname",
                "last_name": "merge_fields.lname",
                "tags": "tags",
                "unsubscribed": "status",
                "origin": "status",
            },
            origins={"cleaned": "bounce"},
            gone=frozenset({"unsubscribed", "archived", "pending", "transactional"}),
        ),
        _named("segments", ["segments", "lists"], ["id", "name"], "name", ""),
        _named("domains", ["domains"], ["domain", "verified"], "domain", ""),
    ),
}
