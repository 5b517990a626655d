"""Return paths: only signed ones are accepted."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail import return_path
from mailsvc.mail.address import parse_path

SECRET = b"s" * 32
ID = UUID("0192f3c4-0000-7000-8000-0123456789ab")
ADDRESS = return_path.make("rp.acme.example", 42, ID, SECRET)


@given(st.integers(0, 2**31 - 1), st.uuids(), st.binary(min_size=1, max_size=64))
def test_a_signed_path_is_parsed_back(account: int, email: UUID, secret: bytes) -> None:
    address = return_path.make("rp.acme.example", account, email, secret)
    assert len(address.partition("@")[0]) <= 64
    for written in (address, address.upper(), address.swapcase()):
        assert return_path.read(written, secret) == (account, email)
    assert parse_path(f"<{address}>".encode(), False)[0].address == address


def test_any_changed_character_invalidates_a_path() -> None:
    local, _, host = ADDRESS.partition("@")
    for at in range(2, len(local)):
        other = "a" if local[at] != "a" else "b"
        assert return_path.read(f"{local[:at]}{other}{local[at + 1 :]}@{host}", SECRET) is None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "@",
        "b-@x",
        ADDRESS[1:],
        ADDRESS.replace("@", "a@"),
        ADDRESS.replace("b-", "c-"),
        "b-" + "1" * 48 + "@x",
        "b-" + "ſ" * 48 + "@x",
        ADDRESS.replace("@", "\n@"),
    ],
)
def test_other_addresses_are_not_return_paths(address: str) -> None:
    assert return_path.read(address, SECRET) is None


def test_a_path_signed_with_another_secret_is_invalid() -> None:
    assert return_path.read(ADDRESS, b"t" * 32) is None


def test_the_format_of_a_path() -> None:
    assert ADDRESS.startswith("b-aaaaak") and ADDRESS.endswith("@rp.acme.example")
    assert ADDRESS.islower()
