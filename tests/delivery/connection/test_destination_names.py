"""What operators may call a destination, and what is refused."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.delivery.connection.destination_names import DestinationNames, Named
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.shaping import Provider, Shaping
from tests.delivery.fakes import Names

BIG = "big/mx1.big.example mx2.big.example"
SHAPING = Shaping({"big": Provider("big", (".big.example",))})


async def find(text: str, known: Collection[str] = (), pools: Collection[str] = ("",), routes: dict[str, str] | None = None) -> Named:
    names = Names()
    names.mxs = {
        "shop.example": [(10, "mx1.big.example"), (20, "mx2.big.example")],
        "xn--bcher-kva.example": [(10, "mx1.big.example"), (20, "mx2.big.example")],
        "quiet.example": [(0, "")],
        "broken.example": "timed out",
    }
    names.hosts = {"mx.small.example": ["192.0.2.1"]}
    found = Routes(Clock(), names, routes or {}, provider=SHAPING.provider)
    return await DestinationNames(found, SHAPING, lambda: pools).find(text, known)


ACCEPTED = [
    ("the whole name", BIG, [BIG], [BIG]),
    ("a provider", "big", [], ["big"]),
    ("a provider's mail of a pool", "bulk@big", ["bulk@x.example"], ["bulk@big"]),
    ("a host of a known destination", "MX2.big.example.", [BIG], [BIG]),
    ("a host, in all pools", "mx1.big.example", [BIG, f"bulk@{BIG}"], [BIG, f"bulk@{BIG}"]),
    ("a host in one pool", "default@mx1.big.example", [BIG, f"bulk@{BIG}"], [BIG]),
    ("a recipient's domain", "Shop.Example", [], [BIG]),
    ("a recipient's domain in another script", "bücher.example", [], [BIG]),
    ("a domain whose mail is still queued under its name", "shop.example", ["shop.example"], [BIG, "shop.example"]),
    ("a domain that DNS does not know at the moment", "broken.example", ["broken.example"], ["broken.example"]),
    ("a mail server without mail", "mx.small.example", [], ["mx.small.example"]),
]


@pytest.mark.parametrize(("text", "known", "expected"), [each[1:] for each in ACCEPTED], ids=[each[0] for each in ACCEPTED])
@pytest_twisted.ensureDeferred
async def test_a_destination_is_found_by(text: str, known: list[str], expected: list[str]) -> None:
    assert await find(text, known) == Named(expected)


@pytest_twisted.ensureDeferred
async def test_a_recipients_domain_means_all_pools_and_with_a_pool_only_that() -> None:
    assert (await find("shop.example", pools=("", "bulk"))).names == [BIG, f"bulk@{BIG}"]
    assert (await find("bulk@shop.example", pools=("", "bulk"))).names == [f"bulk@{BIG}"]


@pytest_twisted.ensureDeferred
async def test_the_operators_routes_are_destinations() -> None:
    routes = {"*": "smtp://192.0.2.7:2525"}
    assert (await find("192.0.2.7:2525", routes=routes)).names == ["192.0.2.7:2525"]
    assert (await find("any.example", routes=routes)).names == ["192.0.2.7:2525"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("typo.example", "There is no destination 'typo.example'. The domain typo.example does not exist."),
        ("quiet.example", "There is no destination 'quiet.example'. quiet.example accepts no mail (null MX)."),
        (
            "broken.example",
            "There is no destination 'broken.example'. The mail exchangers of broken.example could not be looked up: timed out.",
        ),
        ("typo", "There is no destination 'typo'. typo is not a mail domain."),
        ("no name>", "There is no destination 'no name>'. no name> is not a mail domain."),
        ("", "There is no destination ''."),
        ("x" * 300 + ".example", "There is no destination 'xxx"),
        ("nobody@shop.example", "There is no pool 'nobody'."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_unknown_name_is_refused(text: str, why: str) -> None:
    found = await find(text)
    assert not found.names
    assert found.why.startswith(why)


@pytest_twisted.ensureDeferred
async def test_a_host_of_several_destinations_is_answered_with_a_list() -> None:
    found = await find("mx1.big.example", [BIG, "big/mx1.big.example", "other.example"])
    assert found == Named(
        why=f"mx1.big.example is a host of several destinations. Choose one by its whole name:\nbig/mx1.big.example\n{BIG}"
    )
