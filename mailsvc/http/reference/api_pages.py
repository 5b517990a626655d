"""A page for each collection of the API, from its OpenAPI description: fields, samples, responses, and a form to try it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from mailsvc.http.reference.samples import LANGUAGES, Call, over_smtp

Described = Mapping[str, Any]  # a part of an OpenAPI description

# Fields of a sample, where all fields together would not be a request that anybody sends.
BRIEF = {"SendEmail": ("from", "to", "subject", "html")}
ALIASES = {"/email", "/email/sending", "/emails/sending"}  # of POST /emails; docs/api.md names them
KEYS = {
    "full": "an API key with `full_access`",
    "sending": "an API key with `full_access` or `sending_access`",
    "any": "an API key",
    "none": "no API key",
}
_REF = "#/components/schemas/"


def pages(document: Described) -> dict[str, str]:
    """The Markdown of each page by its name: `emails`, `api-keys`, …"""
    found: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, one in methods.items() if path not in ALIASES else ():
            found.setdefault(one["tags"][0], []).append(_operation(document, method.upper(), path, one))
    about = {tag["name"]: tag["description"] for tag in document["tags"]}
    return {_name(tag): "\n\n".join([f"# {title(tag)}", about[tag], *operations]) + "\n" for tag, operations in found.items()}


def title(tag: str) -> str:
    words = tag.replace("-", " ")
    return {"healthz": "Liveness", "readyz": "Readiness", "openapi.json": "The OpenAPI description", "api-keys": "API keys"}.get(
        tag, words[0].upper() + words[1:]
    )


def _name(tag: str) -> str:
    return tag.removesuffix(".json")


def _operation(document: Described, method: str, path: str, one: Described) -> str:
    parts = [f"## {one['summary']}", f"`{method} {path}` needs {KEYS[one['x-key']]}.", one["description"]]
    parts += _parameters(one.get("parameters", ()))
    body = one.get("requestBody")
    media, content = next(iter(body["content"].items())) if body else ("", {})
    parts += _body(document, media, content["schema"]) if body else []
    call = call_of(method, path, one)
    languages = LANGUAGES if media in ("", "application/json") else {}
    parts += [f"### {one['summary']}: samples", *_samples(call)] if languages else _upload(path, content["example"])
    parts += [_form(call, path, one)] if languages else []
    return "\n\n".join(part for part in [*parts, *_responses(one)] if part)


def call_of(method: str, path: str, one: Described) -> Call:
    """The request of the samples: with the examples of its required parameters, and of its body."""
    given = {each["name"]: quote(str(each["example"]), safe="@") for each in one.get("parameters", ()) if each["required"]}
    filled = re.sub(r"{(\w+)}", lambda found: given[found[1]], path)
    query = "&".join(f"{name}={given[name]}" for name in given if f"{{{name}}}" not in path)
    content = one.get("requestBody", {}).get("content", {}).get("application/json")
    body = None if content is None else _brief(content)
    return Call(method, f"{filled}?{query}" if query else filled, one["x-key"] != "none", body)


def _brief(content: Described) -> Any:
    brief = BRIEF.get(content["schema"].get("$ref", "").removeprefix(_REF))
    return content["example"] if brief is None else {name: content["example"][name] for name in brief}


def _samples(call: Call) -> Iterator[str]:
    """One disclosure for each language; of those with a common name, browsers open one at a time."""
    group = escape(f"{call.method} {call.path}")
    for number, (language, (syntax, program)) in enumerate(LANGUAGES.items()):
        opened = "" if number else " open"
        yield f'<details class="sample" name="{group}"{opened}><summary>{language}</summary>'
        yield f"```{syntax}\n{program(call)}\n```"
        yield "</details>"
    if (call.method, call.path) == ("POST", "/emails"):
        yield f'<details class="sample" name="{group}"><summary>SMTP</summary>'
        yield f"```bash\n{over_smtp(call.body)}\n```"
        yield "</details>"


def _upload(path: str, example: Described) -> list[str]:
    fields = "".join(f" \\\n  -F '{name}={value}'" for name, value in example.items() if name == "on_conflict")
    return [
        "### curl",
        f'```bash\ncurl "$BASE_URL{path}" \\\n  -H "Authorization: Bearer $API_KEY" \\\n  -F file=@contacts.csv{fields}\n```',
    ]


def _form(call: Call, path: str, one: Described) -> str:
    """What the script try.js makes a form of. Without a development server behind the page, nothing is shown."""
    parameters = [[each["name"], each["in"], each["example"] if each["required"] else ""] for each in one.get("parameters", ())]
    facts = {"method": call.method, "path": path, "key": call.key, "parameters": parameters, "body": "" if call.body is None else call.json}
    return f'<div class="try" hidden data-call="{escape(json.dumps(facts))}"></div>'


def _parameters(parameters: Any) -> list[str]:
    rows = [
        [f"`{each['name']}`", each["in"], "yes" if each["required"] else "no", each["description"], f"`{each['example']}`"]
        for each in parameters
    ]
    return [table(("parameter", "in", "required", "meaning", "example"), rows)] if rows else []


def _body(document: Described, media: str, schema: Described) -> list[str]:
    rows = [[f"`{name}`", kind, "yes" if required else "no", about] for name, kind, required, about in fields(document, schema)]
    return [f"The body is `{media}`:", table(("field", "type", "required", "meaning"), rows)] if rows else []


def fields(document: Described, schema: Described, before: str = "") -> Iterator[tuple[str, str, bool, str]]:
    """The fields of an object, those inside of others after them: `tags[].name`."""
    schema = _resolved(document, schema)
    if schema.get("type") == "array" and not before:
        yield from fields(document, schema["items"], "[].")
    for name, field in schema.get("properties", {}).items():
        yield before + name, kind(document, field), name in schema.get("required", ()), field.get("description", "")
        for suffix, inner in _inside(document, field):
            if before.count(".") < 2:
                yield from fields(document, inner, f"{before}{name}{suffix}.")


def _inside(document: Described, field: Described) -> Iterator[tuple[str, Described]]:
    """The objects that a field can contain, each with `[]` if it is in an array."""
    for one in field.get("anyOf", (field,)):
        resolved = _resolved(document, one)
        if resolved.get("type") == "array" and (item := _resolved(document, resolved["items"])).get("properties"):
            yield "[]", item
        elif resolved.get("properties") and resolved.get("title") != "NodeBuffer":
            yield "", resolved


def kind(document: Described, field: Described) -> str:
    """The type of a field in words: `string or null`, `array of string`."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(kind(document, each) for each in field["anyOf"]))
    resolved = _resolved(document, field)
    if "const" in resolved or "enum" in resolved:
        return ", ".join(f"`{json.dumps(each)}`" for each in resolved.get("enum", [resolved.get("const")]))
    if resolved.get("type") == "array":
        return f"array of {kind(document, resolved['items'])}"
    found = resolved.get("type", "any")
    return " or ".join(found) if isinstance(found, list) else str(found)


def _resolved(document: Described, schema: Described) -> Described:
    name = schema.get("$ref", "").removeprefix(_REF)
    return document["components"]["schemas"][name] if name else schema


def _responses(one: Described) -> Iterator[str]:
    errors = [status for status in one["responses"] if status >= "400"]
    for status, response in one["responses"].items():
        for media, content in () if status in errors else response["content"].items():
            yield f"The response has the status {status}, and is `{media}`."
            if media == "application/json":
                yield code("json", content["example"])
    yield "Errors: " + ", ".join(f"[{status}](../errors.md#status-{status})" for status in errors) + "."


def code(syntax: str, value: Any) -> str:
    return f"```{syntax}\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |" for line in lines)
