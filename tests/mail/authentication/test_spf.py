"""SPF records: terms and macros (RFC 7208 §4.6, §5, §7)."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.authentication import spf
from mailsvc.mail.authentication.spf import CheckHost, Mechanism, SpfError

# The sender and the addresses of RFC 7208 §7.4.
CHECK = CheckHost(ip_address("192.0.2.3"), "strong-bad@email.example.com", "mx.example.org")
CHECK_IPV6 = CheckHost(ip_address("2001:db8::cb01"), "strong-bad@email.example.com")


@pytest.mark.parametrize(("text", "yes"), [("v=spf1", True), ("V=SPF1 -all", True), ("v=spf10", False), ("v=spf1-all", False), ("", False)])
def test_spf_records_are_recognized(text: str, yes: bool) -> None:
    assert spf.is_spf(text) is yes


def test_terms_are_parsed() -> None:
    first, last = (
        "v=spf1  +a ~mx:example.org/24//64 -INCLUDE:x.example ?ip4:192.0.2.7/24",
        "ip6:2001:db8::/32 exists:%{i}.x.example all x=",
    )
    record = spf.parse(f"{first} {last}")
    assert [(m.name, m.qualifier, m.domain, m.four, m.six) for m in record.mechanisms] == [
        ("a", "+", "", 32, 128),
        ("mx", "~", "example.org", 24, 64),
        ("include", "-", "x.example", 32, 128),
        ("ip4", "?", "", 32, 128),
        ("ip6", "+", "", 32, 128),
        ("exists", "+", "%{i}.x.example", 32, 128),
        ("all", "+", "", 32, 128),
    ]
    assert str(record.mechanisms[3].network) == "192.0.2.0/24"
    assert spf.parse("v=spf1 a/24").mechanisms == (Mechanism("a", "+", four=24),)
    assert spf.parse("v=spf1 redirect=_spf.example.org").redirect == "_spf.example.org"
    assert spf.parse("v=spf1 -all redirect=_spf.example.org").redirect is None


# Each is wrong according to the grammar in RFC 7208 §12, and alone makes the record invalid.
INVALID = """hello a: include include: ip4: ip4 ip4:300.1.1.1 ip4:192.0.2.1/33 ip6:192.0.2.1 a/33 a//129 all:x redirect= exp=
include:%{x}.example include:% exists:%{l0}.example exists:%{d00}.example a.example =x 1x=y
a:mail a:mail. a:.. a:1.2.3.5 mx:abc.123 a:abc.123. a:example.com- a:example.-com a:example.c_m a:example.com/ a:example.com/032
a/032 a//0128 mx/00
a:/24 a://64 a/24/64 a/ a// a:example.com/24//64//8 a:example.com:25 a:%{d}. a:%{d}/x a:%{d}x include:example
include:example.com/24 include/24
exists exists: exists:example.com/24 ptr: ptr/24 ptr:example all. all/8 ALL: -all-
ip4:192.0.2.1/032 ip4:192.0.2.01 ip4:192.0.2 ip4:192.0.2.1/255.255.255.0 ip4:192.0.2.1/ ip4:192.0.2.1//24 ip4:192.0.2.1:25
ip4:2001:db8::1 ip4/24
ip6:2001:db8::1/129 ip6:2001:db8::1/064 ip6:2001:db8::1//64 ip6:fe80::1%eth0 ip6:2001:db8::g ip6
redirect=-all redirect=example redirect=1.2.3.4 redirect:example.com exp=-all exp=example exp:example.com -redirect=example.com
foo=%abc foo=%{c} foo=%{x} foo=%{d include:%{c}.example.com exists:%{r}.example.com exp=%{t}.example.com exists:%{d2-r}.example.com
a:ex\u00e4mple.com exi\u017fts:x.example.com a\tmx a\x00 ++all +-all
"""
# Each is right, however unusual.
VALID = """a:example.com a:example.com. a:%{d} a:%{d}.example.com a:.com a:foo:bar/baz.example.com a:foo-.example.x--y
a:example.1-2 a:%%.example.com a:x%-
A:EXAMPLE.COM/0//0 MX//0 ip4:0.0.0.0/0 ip6:::/0 ip6:::ffff:192.0.2.1/128 exists:%{L1R+}.%{d} exists:%{l1r.-+,/_=}.%{d} ptr
ptr:example.com
foo= a=1.2.3.5 all=x f.o-o_1=%%%_%- exp=explain.%{d} redirect=_spf.%{d2} ?all
"""


@pytest.mark.parametrize(
    "text",
    [*INVALID.strip().replace("\n", " ").split(" "), "redirect=a.example redirect=b.example", "exp=a.example exp=a.example", "a " * 4100],
)
@pytest.mark.parametrize("frame", ["v=spf1 {} -all", "v=spf1 all {}"], ids=["before all", "after all"])
def test_one_invalid_term_invalidates_the_record(text: str, frame: str) -> None:
    with pytest.raises(SpfError):
        spf.parse(frame.format(text))


@pytest.mark.parametrize("text", VALID.split())
def test_unusual_terms_are_valid(text: str) -> None:
    spf.parse(f"v=spf1   {text}  -all ")


@pytest.mark.parametrize(
    ("macro", "expected"),
    [
        ("%{s}", "strong-bad@email.example.com"),
        ("%{o}", "email.example.com"),
        ("%{d}", "email.example.com"),
        ("%{d4}", "email.example.com"),
        ("%{d3}", "email.example.com"),
        ("%{d2}", "example.com"),
        ("%{d1}", "com"),
        ("%{dr}", "com.example.email"),
        ("%{d2r}", "example.email"),
        ("%{l}", "strong-bad"),
        ("%{l-}", "strong.bad"),
        ("%{lr}", "strong-bad"),
        ("%{lr-}", "bad.strong"),
        ("%{l1r-}", "strong"),
        ("%{ir}.%{v}._spf.%{d2}", "3.2.0.192.in-addr._spf.example.com"),
        ("%{lr-}.lp._spf.%{d2}", "bad.strong.lp._spf.example.com"),
        ("%{lr-}.lp.%{ir}.%{v}._spf.%{d2}", "bad.strong.lp.3.2.0.192.in-addr._spf.example.com"),
        ("%{ir}.%{v}.%{l1r-}.lp._spf.%{d2}", "3.2.0.192.in-addr.strong.lp._spf.example.com"),
        ("%{d2}.trusted-domains.example.net", "example.com.trusted-domains.example.net"),
        ("%%%_%-.x", "% %20.x"),
        ("%{S}", "strong-bad%40email.example.com"),
        ("%{h}", "mx.example.org"),
    ],
)
def test_the_macros_of_the_rfc_are_expanded(macro: str, expected: str) -> None:
    assert spf.expand(macro, "email.example.com", CHECK) == expected


def test_an_ipv6_address_is_expanded_by_nibbles() -> None:
    nibbles = "1.0.b.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2"
    assert spf.expand("%{ir}.%{v}._spf.%{d2}", "email.example.com", CHECK_IPV6) == f"{nibbles}.ip6._spf.example.com"


def test_a_long_expanded_name_is_shortened_from_the_left() -> None:
    name = spf.expand("a." * 130 + "example.com", "example.com", CHECK)
    assert len(name) <= 253 and name.endswith(".a.example.com")


@pytest.mark.parametrize(
    ("address", "candidates", "within"),
    [
        ("192.0.2.3", ("192.0.2.200",), True),
        ("192.0.3.3", ("192.0.2.200",), False),
        ("2001:db8::1", ("192.0.2.200", "2001:db8::ffff"), True),
        ("192.0.2.3", ("2001:db8::1",), False),
    ],
)
def test_networks_are_matched(address: str, candidates: tuple[str, ...], within: bool) -> None:
    assert spf.within(ip_address(address), candidates, 24, 64) is within


@settings(max_examples=200)
@given(st.text(st.sampled_from(list("v=spf1 a:mx/ip4ip6include%{slod}r-.+~?0129redirect=exp all")), max_size=60))
def test_any_text_gives_a_record_or_an_error(text: str) -> None:
    try:
        record = spf.parse("v=spf1 " + text)
    except SpfError:
        return
    for mechanism in record.mechanisms:
        assert len(spf.expand(mechanism.domain, "example.com", CHECK)) <= 253 or "." not in mechanism.domain
