"""Addresses for reports: one per domain, the same each time, and made by nobody else."""

from __future__ import annotations

from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from mailsvc.mail import report_address, return_path

SECRET = b"s" * 32


@given(st.uuids(), st.binary(min_size=1, max_size=32), st.binary(min_size=1, max_size=32))
def test_an_address_is_read_with_its_secret_only(domain_id: UUID, secret: bytes, other: bytes) -> None:
    address = report_address.make("send.example.com", domain_id, secret)
    assert address == report_address.make("send.example.com", domain_id, secret)
    assert report_address.read(address, other, secret) == report_address.read(address.upper(), secret) == domain_id
    assert report_address.read(address, other) == (domain_id if other == secret else None)
    assert report_address.read(address) is None
    assert len(address.partition("@")[0]) <= 64 and return_path.read(address, secret) is None


@given(st.text(max_size=50))
@example("r-" + "a" * 40)
@example("r-" + "ß" * 40)
@example("r-" + "1" * 40)
def test_anything_else_is_no_address(local: str) -> None:
    assert report_address.read(f"{local}@send.example.com", SECRET) is None
    assert report_address.read(local, SECRET) is None


@given(st.integers(2, 41), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_a_changed_character_makes_it_invalid(at: int, character: str) -> None:
    address = report_address.make("h", UUID(int=7), SECRET)
    changed = address[:at] + character + address[at + 1 :]
    assert (report_address.read(changed, SECRET) is None) == (changed != address)
