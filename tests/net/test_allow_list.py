"""Allow-lists of networks."""

from __future__ import annotations

import pytest

from mailsvc.net.allow_list import allows, read


@pytest.mark.parametrize(
    ("text", "shown"), [("192.0.2.7", "192.0.2.7/32"), (" 192.0.2.0/24 ", "192.0.2.0/24"), ("2001:db8::/48", "2001:db8::/48")]
)
def test_networks_are_read(text: str, shown: str) -> None:
    assert read(text) == shown


@pytest.mark.parametrize("text", ["", "x", "192.0.2.1/24", "192.0.2.0/33", "2001:db8::1", "2001:db8::/65", "1.2.3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        read(text)


LIST = ("192.0.2.0/24", "2001:db8::/48")


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("192.0.2.255", True),
        ("192.0.3.0", False),
        ("::ffff:192.0.2.1", True),
        ("::ffff:192.0.3.1", False),
        ("2001:db8:0:1::9", True),
        ("2001:db8:0:1::/64", True),
        ("2001:db8:1::/64", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_addresses_are_compared(address: str, allowed: bool) -> None:
    assert allows(address, LIST) is allowed
    assert allows(address, ()) and allows(address, None)
