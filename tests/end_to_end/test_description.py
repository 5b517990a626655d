"""`GET /openapi.json` against a running daemon: valid and invalid requests made from it find no 5xx and nothing undescribed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.end_to_end.rig import Daemon
from tests.http.rig import Rig

TOO_LARGE = 413  # a refusal, too, but not for the check; a body can be generated that has more than 1 MiB
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PATHS = Rig().contract.document["paths"]
OPERATIONS = sorted(f"{method.upper()} {path}" for path, methods in PATHS.items() for method in methods if path != "/openapi.json")
EXAMPLES = settings(
    max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], derandomize=True
)


def can_be_wrong(name: str) -> bool:
    method, path = name.split(" ")
    operation = PATHS[path][method.lower()]
    return operation["x-key"] != "none" and not {"parameters", "requestBody"}.isdisjoint(operation)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), module_database, {"sandbox": {"listen": ["tcp:0:interface=127.0.0.1"]}})
    daemon.start()
    yield daemon
    status = daemon.stop()
    assert "Traceback" not in daemon.log
    assert status == 0


@pytest.fixture(scope="module")
def description(daemon: Daemon) -> Any:
    description = schemathesis.openapi.from_dict(daemon.call("GET", "/openapi.json").body)
    description.config.generation.allow_extra_parameters = False  # unknown ones are ignored
    return description


@pytest.fixture(scope="module")
def known(daemon: Daemon) -> dict[str, str]:
    """An id that is there, for each collection."""
    sender = f"a@{daemon.facts['domain']}"
    email = daemon.call("POST", "/emails", {"from": sender, "to": "b@example.net", "subject": "s", "text": "t", "scheduled_at": "in 1 day"})
    key = daemon.call("POST", "/api-keys", {"name": "spare"})
    return {"emails": email.body["id"], "api-keys": key.body["id"]}


def call(daemon: Daemon, case: Any) -> Any:
    headers = {"Authorization": f"Bearer {daemon.facts['api_key']}"}
    response = case.call(base_url=f"http://127.0.0.1:{daemon.port}", headers=headers)
    case.validate_response(response, checks=CHECKS)
    return response


@pytest.mark.parametrize("name", OPERATIONS)
def test_valid_requests_are_answered_as_described(daemon: Daemon, description: Any, known: dict[str, str], name: str) -> None:
    method, path = name.split(" ")
    collection = path.split("/")[1]

    @EXAMPLES
    @given(case=description[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE), there=st.booleans())
    def run(case: Any, there: bool) -> None:
        if there and collection in known and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = known[collection]
        call(daemon, case)

    run()


@pytest.mark.parametrize("name", [name for name in OPERATIONS if can_be_wrong(name)])
def test_invalid_requests_are_refused_as_described(daemon: Daemon, description: Any, name: str) -> None:
    method, path = name.split(" ")

    @EXAMPLES
    @given(case=description[path][method].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def run(case: Any) -> None:
        response = call(daemon, case)
        if response.status_code != TOO_LARGE and not _accepted(case):
            case.validate_response(response, checks=[negative_data_rejection])

    run()


def _accepted(case: Any) -> bool:
    """Whether a case that violates the schema is still a valid request."""
    if (case.headers or {}).get("x-batch-validation") == "permissive":  # answers 200, and tells what was wrong
        return True
    # "" sets nothing, and whatever is empty is written like that
    if case.method == "GET" and any(not value and not isinstance(value, int | float) for value in (case.query or {}).values()):
        return True
    return isinstance(case.body, dict) and [] in case.body.values()  # [] sets nothing, either
