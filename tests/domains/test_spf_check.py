"""Evaluating SPF: the verdicts and the limits of RFC 7208 §4.6.4, over names in memory."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import attrs
import pytest
import pytest_twisted

from mailsvc.domains import spf_check
from mailsvc.domains.spf_check import Result
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary

IP = "192.0.2.25"


@attrs.define
class Names:
    """`broken` names give no answer."""

    zones: Mapping[str, Mapping[str, list[Any]]]
    broken: frozenset[str] = frozenset()
    lookups: int = 0

    def _get(self, name: str, kind: str) -> Any:
        self.lookups += 1
        if name in self.broken:
            return Temporary("the server is silent")
        if name not in self.zones:
            return NxDomain(name)
        return Records(name, tuple(self.zones[name].get(kind, ())))

    async def txt(self, name: str) -> Any:
        return self._get(name, "TXT")

    async def mx(self, domain: str) -> Any:
        return self._get(domain, "MX")

    async def addresses(self, host: str) -> Any:
        return self._get(host, "A")

    async def ptr(self, address: str) -> Any:
        return self._get(address, "PTR")


async def check(zones: Mapping[str, Mapping[str, list[Any]]], address: str = IP, broken: frozenset[str] = frozenset()) -> Result:
    return await spf_check.check(Names(zones, broken), ip_address(address), "d.example", "b@d.example")


def record(text: str, **others: Mapping[str, list[Any]]) -> dict[str, Mapping[str, list[Any]]]:
    return {"d.example": {"TXT": [text], "A": [IP], "MX": [Mx(10, "mx.example")]}, "mx.example": {"A": [IP]}} | {
        name.replace("_", "."): kinds for name, kinds in others.items()
    }


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("v=spf1 ip4:192.0.2.0/24 -all", "pass"),
        ("v=spf1 -ip4:192.0.2.25 +all", "fail"),
        ("v=spf1 ~all", "softfail"),
        ("v=spf1 ?all", "neutral"),
        ("v=spf1", "neutral"),
        ("v=spf1 a -all", "pass"),
        ("v=spf1 mx -all", "pass"),
        ("v=spf1 a:mx.example/24 -all", "pass"),
        ("v=spf1 exists:%{d} -all", "pass"),
        ("v=spf1 ptr -all", "fail"),
        ("v=spf1 ptr:mx.example -all", "pass"),
        ("v=spf1 ptr:other.example -all", "fail"),  # it has the name, but not the address
        ("v=spf1 exists:%{i} -all", "fail"),  # a name, although it looks like an address
        ("v=spf1 mx:literal.example -all", "fail"),
        ("v=spf1 exists:six.example -all", "fail"),
        ("v=spf1 redirect=%{d1}", "permerror"),  # "example": one label never has a record
        ("v=spf1 include:i.example redirect=-all -all", "permerror"),
        ("v=spf1 include:bad.example -all", "permerror"),
        ("v=spf1 ip6:2001:db8::/32 -all", "fail"),
        ("v=spf1 include:i.example -all", "pass"),
        ("v=spf1 -include:i.example ~all", "fail"),
        ("v=spf1 include:no.example ?all", "neutral"),  # the fail of an include does not match
        ("v=spf1 redirect=i.example", "pass"),
        ("v=spf1 redirect=no.example", "fail"),
        ("v=spf1 include:none.example -all", "permerror"),
        ("v=spf1 redirect=none.example", "permerror"),
        ("v=spf1 include:broken.example -all", "temperror"),
        ("v=spf1 ip4:x -all", "permerror"),
        ("v=spf1 include:d.example -all", "permerror"),  # itself, without end
        ("hello", "none"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_verdicts(text: str, verdict: str) -> None:
    zones = record(text, i_example={"TXT": ["x", "v=spf1 ip4:192.0.2.25"]}, no_example={"TXT": ["v=spf1 -all"]}, none_example={})
    zones |= {
        IP: {"PTR": ["host.mx.example", "mx.example", "other.example"], "A": [IP]},
        "literal.example": {"MX": [Mx(10, IP)]},
        "six.example": {"A": ["2001:db8::1"]},
        "other.example": {"A": ["192.0.2.26"]},
        "bad.example": {"TXT": ["v=spf1 ip4:192.0.2.25 foo=%abc"]},
    }
    result = await check(zones, broken=frozenset({"broken.example"}))
    assert result.verdict == verdict, result


@pytest_twisted.ensureDeferred
async def test_two_records_are_an_error() -> None:
    zones = {"d.example": {"TXT": ["v=spf1 +all", "v=spf1 +all"]}}
    assert (await check(zones)).verdict == "permerror"


@pytest.mark.parametrize(("count", "verdict"), [(10, "pass"), (11, "permerror")])
@pytest_twisted.ensureDeferred
async def test_at_most_ten_terms_with_lookups(count: int, verdict: str) -> None:
    others = {f"h{n}_example": {"A": ["203.0.113.1"]} for n in range(count - 1)}
    text = "v=spf1 " + " ".join(f"a:h{n}.example" for n in range(count - 1)) + " a -all"
    result = await check(record(text, **others))
    assert (result.verdict, result.terms) == (verdict, count)


@pytest.mark.parametrize(("count", "verdict"), [(4, "pass"), (5, "permerror")])
@pytest_twisted.ensureDeferred
async def test_terms_of_included_records_are_counted(count: int, verdict: str) -> None:
    """Each include is a term, and so is the one mechanism inside; the last mechanism and its redirect are two more."""
    others: dict[str, Any] = {f"i{n}_example": {"TXT": ["v=spf1 a:h.example -all"]} for n in range(count)}
    text = "v=spf1 " + " ".join(f"include:i{n}.example" for n in range(count)) + " redirect=r.example"
    zones = record(text, h_example={"A": ["203.0.113.1"]}, r_example={"TXT": ["v=spf1 a:d.example -all"]}, **others)
    assert (await check(zones)).verdict == verdict


@pytest.mark.parametrize(("count", "verdict"), [(2, "pass"), (3, "permerror")])
@pytest_twisted.ensureDeferred
async def test_at_most_two_lookups_without_an_answer(count: int, verdict: str) -> None:
    text = "v=spf1 " + " ".join(f"a:nowhere{n}.example" for n in range(count)) + " ip4:192.0.2.25 -all"
    assert (await check(record(text))).verdict == verdict


@pytest.mark.parametrize(("address", "verdict"), [("2001:db8::25", "pass"), (IP, "permerror")])
@pytest_twisted.ensureDeferred
async def test_names_without_an_address_of_the_family_are_lookups_without_an_answer(address: str, verdict: str) -> None:
    """Hosts of an MX count too."""
    six = {"A": ["2001:db8::1"]}
    zones = record(
        "v=spf1 a:h0.example mx:m.example ip4:192.0.2.25 ip6:2001:db8::25 -all",
        m_example={"MX": [Mx(10, "h1.example"), Mx(20, "h2.example")]}, h0_example=six, h1_example=six, h2_example=six,
    )  # fmt: skip
    assert (await check(zones, address)).verdict == verdict


@pytest.mark.parametrize(("count", "verdict"), [(10, "pass"), (11, "permerror")])
@pytest_twisted.ensureDeferred
async def test_at_most_ten_mx_hosts(count: int, verdict: str) -> None:
    hosts = {f"h{n}_example": {"A": [IP if n == count - 1 else "203.0.113.1"]} for n in range(count)}
    zones = record("v=spf1 mx:m.example -all", m_example={"MX": [Mx(n, f"h{n}.example") for n in range(count)]}, **hosts)
    assert (await check(zones)).verdict == verdict


@pytest_twisted.ensureDeferred
async def test_a_chain_of_redirects_ends() -> None:
    names = {f"r{n}_example": {"TXT": [f"v=spf1 redirect=r{n + 1}.example"]} for n in range(20)}
    result = await check(record("v=spf1 redirect=r0.example", **names))
    assert (result.verdict, result.terms) == ("permerror", 11)


# RFC 7208 appendix A: its zones, and for each record of A.1 the addresses that pass.
APPENDIX: dict[str, Mapping[str, list[Any]]] = {
    "example.com": {"MX": [Mx(10, "mail-a.example.com"), Mx(20, "mail-b.example.com")], "A": ["192.0.2.10", "192.0.2.11"]},
    "amy.example.com": {"A": ["192.0.2.65"]},
    "bob.example.com": {"A": ["192.0.2.66"]},
    "mail-a.example.com": {"A": ["192.0.2.129"]},
    "mail-b.example.com": {"A": ["192.0.2.130"]},
    "example.org": {"MX": [Mx(10, "mail-c.example.org")]},
    "mail-c.example.org": {"A": ["192.0.2.140"]},
    "192.0.2.10": {"PTR": ["example.com"]},
    "192.0.2.11": {"PTR": ["example.com"]},
    "192.0.2.65": {"PTR": ["amy.example.com"]},
    "192.0.2.66": {"PTR": ["bob.example.com"]},
    "192.0.2.129": {"PTR": ["mail-a.example.com"]},
    "192.0.2.130": {"PTR": ["mail-b.example.com"]},
    "192.0.2.140": {"PTR": ["mail-c.example.org"]},
    "10.0.0.4": {"PTR": ["bob.example.com"]},
    # A.3, A.4
    "mary.mobile-users._spf.example.com": {"A": ["127.0.0.2"]},
    "fred.mobile-users._spf.example.com": {"A": ["127.0.0.2"]},
    "15.15.168.192.joel.remote-users._spf.example.com": {"A": ["127.0.0.2"]},
    "mobile-users._spf.example.com": {"TXT": ["v=spf1 exists:%{l1r+}.%{d}"]},
    "remote-users._spf.example.com": {"TXT": ["v=spf1 exists:%{ir}.%{l1r+}.%{d}"]},
    "ip4._spf.example.com": {"TXT": ["v=spf1 -ip4:192.0.2.0/24 +all"]},
    "ptr._spf.example.com": {"TXT": ["v=spf1 -ptr:example.com +all"]},
}
HOSTS = {10, 11, 65, 66, 129, 130, 140}


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("v=spf1 +all", HOSTS),
        ("v=spf1 a -all", {10, 11}),
        ("v=spf1 a:example.org -all", set()),
        ("v=spf1 mx -all", {129, 130}),
        ("v=spf1 mx:example.org -all", {140}),
        ("v=spf1 mx mx:example.org -all", {129, 130, 140}),
        ("v=spf1 mx/30 mx:example.org/30 -all", {129, 130, 140}),
        ("v=spf1 ptr -all", HOSTS - {140}),
        ("v=spf1 ip4:192.0.2.128/28 -all", {129, 130, 140}),
        ("v=spf1 -include:ip4._spf.%{d} -include:ptr._spf.%{d} +all", HOSTS - {140}),
    ],
)
@pytest_twisted.ensureDeferred
async def test_the_examples_of_the_rfc(text: str, passing: set[int]) -> None:
    zones = APPENDIX | {"example.com": {**APPENDIX["example.com"], "TXT": [text]}}
    passed = {host for host in HOSTS if (await of_example_com(zones, f"192.0.2.{host}", "strong-bad")).verdict == "pass"}
    assert passed == passing
    if text == "v=spf1 ptr -all":  # the name does not have this address
        assert (await of_example_com(zones, "10.0.0.4", "strong-bad")).verdict == "fail"


@pytest.mark.parametrize(
    ("address", "local", "verdict"),
    [
        ("192.0.2.129", "anyone", "pass"),
        ("203.0.113.1", "mary", "pass"),
        ("203.0.113.1", "fred+list", "pass"),
        ("192.168.15.15", "joel", "pass"),
        ("192.168.15.16", "joel", "fail"),
        ("203.0.113.1", "amy", "fail"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_records_for_each_user(address: str, local: str, verdict: str) -> None:
    text = "v=spf1 mx include:mobile-users._spf.%{d} include:remote-users._spf.%{d} -all"
    zones = APPENDIX | {"example.com": {**APPENDIX["example.com"], "TXT": [text]}}
    assert (await of_example_com(zones, address, local)).verdict == verdict


async def of_example_com(zones: Mapping[str, Mapping[str, list[Any]]], address: str, local: str) -> Result:
    return await spf_check.check(Names(zones), ip_address(address), "example.com", f"{local}@example.com")
