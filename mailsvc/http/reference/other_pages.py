"""The reference pages about errors, events and settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mailsvc.http.openapi import ERRORS
from mailsvc.http.reference.api_pages import code, table
from mailsvc.settings import reader
from mailsvc.settings.example import written
from mailsvc.settings.schema import Settings


def errors(document: Mapping[str, Any]) -> str:
    names = document["components"]["schemas"]["Error"]["properties"]["name"]["enum"]
    parts = [
        "# Errors",
        "An error is one flat object. `statusCode` is also the status of the response, `name` is for programs, and `message` is for "
        "people: it names the field that is wrong and says what to do.",
    ]
    for status, (about, name, message) in ERRORS.items():
        parts += [f"## Status {status}", about, code("json", {"statusCode": status, "message": message, "name": name})]
    parts += ["## Names", table(("name",), [[f"`{name}`"] for name in names])]
    return "\n\n".join(parts) + "\n"


def events(document: Mapping[str, Any]) -> str:
    parts = [
        "# Events",
        "What webhook endpoints receive, with an example of each type. [Events, webhooks, suppressions](../webhooks.md) says when each is "
        "sent, how it is signed, and how failures are retried.",
    ]
    for kind, event in document["webhooks"].items():
        content = event["post"]["requestBody"]["content"]["application/json"]
        parts += [f"## {kind}", event["post"]["description"], code("json", content["example"])]
    return "\n\n".join(parts) + "\n"


def settings() -> str:
    tables: dict[str, list[list[str]]] = {}
    for place, key, field in reader.keys(Settings):
        tables.setdefault(place, []).append(_setting(key, field))
    named = {field.name: field.metadata["named"] for field in attrs.fields(Settings) if "named" in field.metadata}
    for place, factory in named.items():
        tables[place] = [_setting(key, field) for _, key, field in reader.keys(factory)]
    titles = {field.name: field.metadata["help"] for field in attrs.fields(Settings)}
    parts = [
        "# Settings",
        "Every setting with its default. Environment variables override the file: `MAILSVC_BASE_URL`, `MAILSVC_DATABASE__URL`. "
        "`etc/mailsvc.toml` is the same as a file.",
    ]
    for place, rows in tables.items():
        name = f"{place}.NAME" if place in named else place
        parts += [f"## `[{name}]`", titles[place]] if place else ["## At the top of the file"]
        parts.append(table(("setting", "default", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def _setting(key: str, field: attrs.Attribute[Any]) -> list[str]:
    """A row of the table."""
    default = "none" if field.default is None else f"`{written(field.default)}`"
    return [f"`{key}`", default, field.metadata["help"]]
