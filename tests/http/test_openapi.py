"""`GET /openapi.json` as a document: valid, complete, with examples that validate, and usable by client generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from jsonschema import Draft202012Validator, FormatChecker

from mailsvc.clock import utc
from mailsvc.events import payload
from mailsvc.http.fields import Bounds
from mailsvc.http.openapi import document, endpoints
from mailsvc.policy import Limits
from tests.http.rig import Rig

RIG = Rig()
CONTRACT = RIG.contract
DOCUMENT: Any = CONTRACT.document
SCHEMAS = DOCUMENT["components"]["schemas"]


def operations() -> Iterator[tuple[str, Any]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation
    for kind, methods in DOCUMENT["webhooks"].items():
        yield kind, methods["post"]


def fields() -> Iterator[tuple[str, Any]]:
    """Every property of every component."""
    for title, schema in SCHEMAS.items():
        for name, field in schema.get("properties", {}).items():
            yield f"{title}.{name}", field


def subschemas(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from subschemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from subschemas(value)


def media() -> Iterator[tuple[str, Any]]:
    for name, operation in operations():
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        for body in bodies:
            for kind, found in body.get("content", {}).items():
                if kind == "application/json":
                    yield name, found
    for status, response in DOCUMENT["components"]["responses"].items():
        yield status, response["content"]["application/json"]


def test_openapi_document_is_valid() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()


def test_every_operation_has_a_summary_a_description_and_a_described_tag() -> None:
    tags = {tag["name"]: tag["description"] for tag in DOCUMENT["tags"]}
    for name, operation in operations():
        assert operation["summary"] and operation["description"].endswith("."), name
        assert all(tags[tag].endswith(".") for tag in operation["tags"]), name


def test_every_parameter_and_header_has_a_description_and_a_valid_example() -> None:
    parameters = [(f"{name} {each['name']}", each) for name, operation in operations() for each in operation.get("parameters", [])]
    for name, parameter in [*parameters, *DOCUMENT["components"]["headers"].items()]:
        assert parameter["description"].endswith("."), name
        Draft202012Validator(parameter["schema"], format_checker=FormatChecker()).validate(parameter["example"])


def test_every_field_has_a_description_and_an_example() -> None:
    for name, field in fields():
        assert field["description"].endswith("."), name
        assert "examples" in field or any("$ref" in one for one in subschemas(field)), name
    for title, schema in SCHEMAS.items():
        assert schema["examples"], title


def test_examples_validate_against_their_schemas() -> None:
    for name, schema in [*SCHEMAS.items(), *fields()]:
        for example in schema.get("examples", []):
            assert [error.message for error in CONTRACT.validator(schema).iter_errors(example)] == [], name
    for name, found in media():
        assert [error.message for error in CONTRACT.validator(found["schema"]).iter_errors(found["example"])] == [], name


def test_every_response_has_the_rate_limit_headers() -> None:
    needed = {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                found = DOCUMENT["components"]["responses"][status] if "$ref" in response else response
                assert needed <= set(found["headers"]), (method, path, status)


def test_real_responses_have_the_rate_limit_headers() -> None:
    for method, path, key in (("GET", "/emails", "ms_full"), ("GET", "/emails", None), ("GET", "/healthz", None), ("GET", "/x", "ms_full")):
        headers = RIG.request(method, path, key=key).headers
        assert {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"} <= set(headers), (method, path)


def test_operations_have_their_security_scheme() -> None:
    for one in endpoints(RIG.api.collections()):
        operation = DOCUMENT["paths"][one.path][one.method.lower()]
        assert operation["security"] == ([] if one.operation and one.operation.key == "none" else [{"key": []}]), one.path


def test_operator_limits_are_in_the_document() -> None:
    bounds = Bounds(Limits(recipients_per_field=7), batch=9)
    found = document(RIG.api.collections(), bounds=bounds)
    batch = found["paths"]["/emails/batch"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert (batch["minItems"], batch["maxItems"]) == (1, 9)
    one, many = found["components"]["schemas"]["SendEmail"]["properties"]["to"]["anyOf"]
    assert one["type"] == "string" and (many["minItems"], many["maxItems"]) == (1, 7)


@pytest.mark.parametrize("kind", payload.TYPES)
def test_webhook_is_described_and_its_test_event_is_valid(kind: str) -> None:
    CONTRACT.check_event(payload.sample(kind, utc(RIG.clock)))


def test_client_generators_can_type_every_schema() -> None:
    """They skip operations whose enums mix types, and lose the fields of objects that have alternatives beside their properties."""
    for name, schema in [*SCHEMAS.items(), *media()]:
        for one in subschemas(schema):
            if isinstance(one.get("enum"), list):
                assert {type(word) for word in one["enum"]} == {str}, name
            if "properties" in one and isinstance(one.get("type"), str):
                assert not {"anyOf", "oneOf", "allOf"} & set(one), name
                assert "title" in one, name
