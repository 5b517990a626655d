"""The parts of a request besides its body: IDs in paths, query parameters, headers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from mailsvc.http.problem import Problem, invalid
from mailsvc.http.request import Request
from mailsvc.store.paging import Page

PAGE_DEFAULT = 20
PAGE_MAX = 100
KEY_MAX = 256
VALUES_MAX = 5  # of a parameter of a page for people

Found = TypeVar("Found")

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)


def uuid(text: str, name: str) -> UUID:
    if not _UUID.match(text):
        raise Problem(422, "invalid_parameter", f"The `{name}` must be a valid UUID.")
    return UUID(text)


def page(
    request: Request, read_id: Callable[[str, str], UUID] = uuid, *, default: int | None = PAGE_DEFAULT, backwards: bool = True
) -> Page:
    """The requested page of a list. With `default` None, a request without parameters gets all rows. `read_id` reads their IDs.

    `backwards`: whether the list has `before`.
    """
    if not backwards:
        no_before(request)
    after, before = (one(request, name) for name in ("after", "before"))
    if after and before:
        raise invalid("The `after` and `before` parameters cannot be combined.")
    length = limit(request) if one(request, "limit") or after or before or default is not None else None
    return Page(length, read_id(after, "after") if after else None, read_id(before, "before") if before else None)


def no_before(request: Request) -> None:
    """For a list that can only be read forwards: ignoring the parameter would return the first page again and again."""
    if one(request, "before"):
        raise invalid("This list has no `before` parameter.")


def limit(request: Request) -> int:
    text = one(request, "limit")
    if text and not (re.fullmatch("[0-9]{1,3}", text) and 1 <= int(text) <= PAGE_MAX):
        raise invalid(f"The pagination limit must be a number between 1 and {PAGE_MAX}. Check the `limit` parameter.")
    return int(text or PAGE_DEFAULT)


def sequence(request: Request, name: str) -> int:
    """A position; 0 if it is not given."""
    text = one(request, name)
    if text and not re.fullmatch("[0-9]{1,18}", text):
        raise Problem(422, "invalid_parameter", f"The `{name}` must be a whole number.")
    return int(text or 0)


def days(request: Request, default: int, most: int) -> int:
    """A number of days in `days`."""
    text = one(request, "days")
    if text and not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= most):
        raise Problem(422, "invalid_parameter", f"The `days` must be a number between 1 and {most}.")
    return int(text or default)


def choice(request: Request, name: str, *values: str) -> str | None:
    """One of `values`; None if it is not given."""
    text = one(request, name)
    if text and text not in values:
        raise Problem(422, "invalid_parameter", f"The `{name}` must be one of: {', '.join(values)}.")
    return text or None


def one(request: Request, name: str) -> str:
    """A query parameter; empty if it is not given."""
    values: list[bytes] = request.args.get(name.encode(), [])
    if len(values) > 1:
        raise invalid(f"The `{name}` parameter is given twice.")
    return values[0].decode("utf-8", "replace") if values else ""


async def first(request: Request, name: str, read: Callable[[str], Awaitable[Found | None]]) -> Found | None:
    """What `read` finds for a value of a query parameter. Programs on the way to a person's browser may have added more of them."""
    values: list[bytes] = request.args.get(name.encode(), [])
    for value in values[:VALUES_MAX]:
        if (found := await read(value.decode("utf-8", "replace"))) is not None:
            return found
    return None


def several(request: Request, name: str) -> list[str]:
    """The values of a query parameter that can be repeated, can have several values separated by commas, and can be named `name[]`."""
    values = [*request.args.get(name.encode(), []), *request.args.get(name.encode() + b"[]", [])]
    return [text for value in values for text in value.decode("utf-8", "replace").split(",") if text]


def idempotency_key(request: Request) -> str | None:
    """The Idempotency-Key header: any text of 1 to 256 characters."""
    values = request.requestHeaders.getRawHeaders(b"idempotency-key")
    if values is None:
        return None
    try:
        key = values[0].decode()
    except UnicodeDecodeError:
        key = values[0].decode("latin-1")
    if len(values) > 1 or not 1 <= len(key) <= KEY_MAX:
        raise Problem(400, "invalid_idempotency_key", f"The `Idempotency-Key` header must be given once, with 1 to {KEY_MAX} characters.")
    return key


def permissive(request: Request) -> bool:
    """Whether the valid emails of a batch are sent if others are refused."""
    values = request.requestHeaders.getRawHeaders(b"x-batch-validation") or [b"strict"]
    if len(values) > 1 or values[0] not in (b"strict", b"permissive"):
        raise invalid("The `x-batch-validation` header must be `strict` or `permissive`.")
    return values[0] == b"permissive"
