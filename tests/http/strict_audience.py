"""What the client libraries of typed languages need of answers about contacts, segments and topics, and of their webhooks."""

from __future__ import annotations

from tests.http.kinds import DATE, FLAG, GUID, INT, TEXT, TEXTS, U32, Schema, go, go_list, has, listed, null_or, rows, words

_SUBSCRIPTION = words("opt_in opt_out")
_CHOICE = has(id=GUID, subscription=_SUBSCRIPTION)

# Rust wants `audience_id` to be a string, and `segment_ids` an array.
TOLD_CONTACT = has(
    id=GUID, audience_id=TEXT, segment_ids=TEXTS, created_at=DATE, updated_at=DATE, email=TEXT, first_name=null_or(TEXT),
    last_name=null_or(TEXT), unsubscribed=FLAG,
)  # fmt: skip
TOLD_CHOICES = has(email=TEXT, topics={**rows(_CHOICE), "minItems": 1})
TOLD_TOPIC = has(
    id=GUID, name=TEXT, description=null_or(TEXT), default_subscription=_SUBSCRIPTION, deleted=FLAG, created_at=DATE, updated_at=DATE
)

_R_ROW = has({"first_name": null_or(TEXT), "last_name": null_or(TEXT)}, id=TEXT, email=TEXT, unsubscribed=FLAG, created_at=TEXT)
_R_NAMED = has(id=TEXT, name=TEXT, created_at=TEXT)
_R_TOPIC = has(
    {"description": null_or(TEXT)},
    id=TEXT,
    name=TEXT,
    default_subscription=_SUBSCRIPTION,
    visibility=words("public private"),
    created_at=TEXT,
)
_R_PROPERTY = has(id=TEXT, key=TEXT, type=words("string number"), created_at=TEXT)
_R_IMPORT = has(
    {"completed_at": null_or(TEXT)}, id=TEXT, status=words("queued in_progress completed failed"), created_at=TEXT,
    counts=has(total=U32, created=U32, updated=U32, skipped=U32, failed=U32),
)  # fmt: skip
_ID, _DELETED = has(id=TEXT), has(id=TEXT, deleted=FLAG)
_MAYBE = null_or(TEXT)
_R_BROADCAST = has(
    {
        "scheduled_at": _MAYBE, "sent_at": _MAYBE, "from": _MAYBE, "subject": _MAYBE, "reply_to": null_or(TEXTS), "preview_text": _MAYBE,
        "text": _MAYBE, "html": _MAYBE,
    },
    id=TEXT, name=TEXT, audience_id=TEXT, status=TEXT, created_at=TEXT,
)  # fmt: skip
_R_RECIPIENT = has(
    {
        "contact_id": _MAYBE, "count": null_or(U32), "bounce_type": null_or(words("permanent transient undetermined")),
        "clicked_links": null_or(rows(has(url=TEXT, clicks=U32))),
    },
    id=TEXT, email=TEXT,
)  # fmt: skip
RUST: dict[str, Schema] = {
    "POST /broadcasts": _ID,
    "GET /broadcasts": listed(_R_BROADCAST),
    "GET /broadcasts/{id}": _R_BROADCAST,
    "PATCH /broadcasts/{id}": _ID,
    "POST /broadcasts/{id}/send": _ID,
    "DELETE /broadcasts/{id}": _DELETED,
    "POST /broadcasts/{id}/cancel": _ID,
    "GET /broadcasts/{id}/recipients": listed(_R_RECIPIENT),
    "GET /broadcasts/{id}/clicked-links": listed(has(id=TEXT, url=TEXT, clicks=INT, unique_clicks=INT)),
    "POST /contacts": _ID,
    "GET /contacts": listed(_R_ROW),
    "GET /contacts/{contact}": _R_ROW,
    "PATCH /contacts/{contact}": _ID,
    "DELETE /contacts/{contact}": has(contact=TEXT, deleted=FLAG),
    "GET /contacts/{contact}/segments": listed(_R_NAMED),
    "POST /contacts/{contact}/segments/{segment_id}": _ID,
    "DELETE /contacts/{contact}/segments/{segment_id}": _DELETED,
    "GET /contacts/{contact}/topics": listed(has(id=TEXT, name=TEXT, subscription=_SUBSCRIPTION, created_at=TEXT)),
    "PATCH /contacts/{contact}/topics": _ID,
    "GET /audiences/{id}/contacts": listed(_R_ROW),
    "POST /contacts/imports": _ID,
    "GET /contacts/imports": listed(_R_IMPORT),
    "GET /contacts/imports/{id}": _R_IMPORT,
    "POST /segments": has(id=TEXT, name=TEXT),
    "GET /segments": listed(_R_NAMED),
    "GET /segments/{id}": _R_NAMED,
    "DELETE /segments/{id}": _DELETED,
    "POST /topics": _ID,
    "GET /topics": listed(_R_TOPIC),
    "GET /topics/{id}": _R_TOPIC,
    "PATCH /topics/{id}": _ID,
    "DELETE /topics/{id}": _DELETED,
    "POST /contact-properties": _ID,
    "GET /contact-properties": listed(_R_PROPERTY),
    "GET /contact-properties/{id}": _R_PROPERTY,
    "PATCH /contact-properties/{id}": _ID,
    "DELETE /contact-properties/{id}": _DELETED,
}

# .NET reads `properties` as strings by name, so contacts with properties fail there: docs/clients.md.
_N_ROW = has({"first_name": null_or(TEXT), "last_name": null_or(TEXT)}, id=GUID, email=TEXT, unsubscribed=FLAG, created_at=DATE)
_N_NAMED = has(id=GUID, name=TEXT, created_at=DATE)
_N_TOPIC = has({"description": null_or(TEXT)}, id=GUID, name=TEXT, default_subscription=_SUBSCRIPTION, created_at=DATE)
_N_ID = has(id=GUID)
_N_PROPERTY = has(id=GUID, key=TEXT, type=words("string number"), created_at=DATE)
_N_BROADCAST = has(
    {"scheduled_at": null_or(DATE), "sent_at": null_or(DATE), "topic_id": null_or(GUID), "from": null_or(TEXT), "reply_to": null_or(TEXTS)},
    id=GUID, name=TEXT, segment_id=GUID, status=words("draft queued sent scheduled failed"), created_at=DATE,
)  # fmt: skip
DOTNET: dict[str, Schema] = {
    "POST /broadcasts": _N_ID,
    "GET /broadcasts": has(data=rows(_N_BROADCAST)),
    "GET /broadcasts/{id}": _N_BROADCAST,
    "PATCH /broadcasts/{id}": _N_ID,
    "POST /contacts": _N_ID,
    "GET /contacts": listed(_N_ROW),
    "GET /contacts/{contact}": _N_ROW,
    "POST /segments": _N_ID,
    "GET /segments": listed(_N_NAMED),
    "GET /segments/{id}": _N_NAMED,
    "GET /segments/{id}/contacts": listed(_N_ROW),
    "GET /contacts/{contact}/segments": listed(_N_NAMED),
    "POST /audiences": _N_ID,
    "GET /audiences": listed(_N_NAMED),
    "GET /audiences/{id}": _N_NAMED,
    "GET /contacts/{contact}/topics": listed(has(id=GUID, name=TEXT, subscription=_SUBSCRIPTION)),
    "POST /topics": _N_ID,
    "GET /topics": listed(_N_TOPIC),
    "GET /topics/{id}": _N_TOPIC,
    "POST /contact-properties": _N_ID,
    "GET /contact-properties": listed(_N_PROPERTY),
    "GET /contact-properties/{id}": _N_PROPERTY,
}

_G_ROW = go(id=TEXT, email=TEXT, first_name=TEXT, last_name=TEXT, unsubscribed=FLAG, created_at=TEXT)
_G_NAMED = go(id=TEXT, object=TEXT, name=TEXT, created_at=TEXT)
_G_TOPIC = go(id=TEXT, name=TEXT, description=TEXT, default_subscription=TEXT, created_at=TEXT)
_G_BROADCAST = go(
    object=TEXT, id=TEXT, name=TEXT, segment_id=TEXT, audience_id=TEXT, subject=TEXT, reply_to=TEXTS, preview_text=TEXT, status=TEXT,
    created_at=TEXT, scheduled_at=TEXT, sent_at=TEXT, html=TEXT, text=TEXT, **{"from": TEXT},
)  # fmt: skip
_G_CHOICE = go(id=TEXT, name=TEXT, description=TEXT, subscription=TEXT)
_G_PROPERTY = go(id=TEXT, key=TEXT, object=TEXT, created_at=TEXT, type=TEXT)
_G_IMPORT = go(object=TEXT, id=TEXT, status=TEXT, created_at=TEXT, counts=go(total=INT, created=INT, updated=INT, skipped=INT, failed=INT))
GO: dict[str, Schema] = {
    "GET /broadcasts": go_list(_G_BROADCAST),
    "GET /broadcasts/{id}": _G_BROADCAST,
    "GET /contacts/{contact}/topics": go_list(_G_CHOICE),
    "GET /contact-properties": go_list(_G_PROPERTY),
    "GET /contact-properties/{id}": _G_PROPERTY,
    "GET /contacts/imports": go_list(_G_IMPORT),
    "GET /contacts/imports/{id}": _G_IMPORT,
    "POST /contacts": go(id=TEXT, object=TEXT),
    "GET /contacts": go_list(_G_ROW),
    "GET /contacts/{contact}": _G_ROW,
    "DELETE /contacts/{contact}": go(contact=TEXT, id=TEXT, deleted=FLAG),
    "GET /segments": go_list(_G_NAMED),
    "GET /segments/{id}": _G_NAMED,
    "GET /topics": go_list(_G_TOPIC),
    "GET /topics/{id}": _G_TOPIC,
}
