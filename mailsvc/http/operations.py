"""How an endpoint is described: `operation`, written beside the code that answers and read by `openapi`, and query parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

from mailsvc.http.fields import SOME_ID, Field, Schema
from mailsvc.http.views import Listing, Value, View

F = TypeVar("F", bound=Callable[..., Any])


@attrs.frozen
class Parameter:
    """A query parameter or a header."""

    name: str
    about: str
    example: Any
    schema: Schema
    where: str = "query"
    required: bool = False


@attrs.frozen
class Operation:
    """What an endpoint does, takes and answers.

    `answer` describes a successful response; a media type when that isn't JSON, and `pages` then the JSON with a parameter of `PAGING`.
    `also` has other statuses of a success, `errors` those of this endpoint besides the ones that every endpoint can have.
    `key`: which API key it requires: "full", "sending" (also one that can only send), "any", or "none".
    An endpoint that isn't `served` is known to client libraries and always answered 404.
    """

    summary: str
    about: str
    answer: View | Listing | Value | str
    status: int = 200
    pages: Listing | None = None
    also: Sequence[int] = ()
    body: Field | None = None
    body_required: bool = True
    media: str = "application/json"  # of the body
    parameters: Sequence[Parameter] = ()
    errors: Sequence[int] = ()
    key: str = "full"
    served: bool = True


def operation(summary: str, about: str, answer: View | Listing | Value | str, **more: Any) -> Callable[[F], F]:
    """Describes the function below it. Goes under `app.route`."""

    def describe(function: F) -> F:
        function.operation = Operation(summary, about, answer, **more)  # type: ignore[attr-defined]
        return function

    return describe


def not_served(function: F) -> F:
    """For a path that client libraries know and that is always answered 404 here."""
    return operation("Not served", "", "", served=False)(function)


UNSET: Schema = {"const": ""}  # a parameter without a value counts as not given


def or_unset(schema: Schema) -> Schema:
    return {"anyOf": [schema, UNSET]}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": [*words, ""]}


LIMIT = Parameter("limit", "The number of rows on a page.", 20, or_unset({"type": "integer", "minimum": 1, "maximum": 100}))
_ID: Schema = {"type": "string", "format": "uuid"}
AFTER = Parameter("after", "Returns the rows that follow the one with this ID. Not together with `before`.", SOME_ID, or_unset(_ID))
BEFORE = Parameter("before", "Returns the rows that precede the one with this ID. Not together with `after`.", SOME_ID, or_unset(_ID))
PAGING = (LIMIT, AFTER, BEFORE)
