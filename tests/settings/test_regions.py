"""The settings of regions, and what follows from them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mailsvc.settings import loading, regions
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.wiring import source_addresses

ROOT = Path(__file__).parents[2]

EAST, WEST = "us-east-1", "eu-west-1"
TWO = {
    EAST: {"host": "out.us.example.com", "spf_include": "spf.us.example.com", "sources": ["192.0.2.1 out.us.example.com"]},
    WEST: {
        "host": "out.eu.example.com",
        "ehlo_name": "mail.eu.example.com",
        "api": "https://api.eu.example.com",
        "smtp": "smtp.eu.example.com",
    },
}


def load(**given: object) -> Settings:
    tables = {"base_url": "https://api.example.com", "database": {"url": "postgresql://x"}, "smtp": {"listen": {}}, **given}
    return loading.check(tables, {})


def test_a_process_takes_what_it_has_not_from_its_region() -> None:
    east, west = load(regions=TWO), load(regions=TWO, region=WEST)
    assert east.delivery.ehlo_name == "out.us.example.com" and east.delivery.sources == ("192.0.2.1 out.us.example.com",)
    assert west.delivery.ehlo_name == "mail.eu.example.com" and west.delivery.sources == ()
    own = load(regions=TWO, delivery={"ehlo_name": "out7.us.example.com", "sources": ["192.0.2.7 out7.us.example.com"]})
    assert own.delivery.ehlo_name == "out7.us.example.com" and own.delivery.sources == ("192.0.2.7 out7.us.example.com",)


def test_each_region_has_hosts_and_an_spf_record() -> None:
    given = load(regions=TWO, domains={"spf_include": "spf.example.com"})
    assert regions.hosts(given) == {EAST: "out.us.example.com", WEST: "out.eu.example.com"}
    assert regions.spf_includes(given) == {EAST: "spf.us.example.com", WEST: "spf.example.com"}
    found = regions.all_regions(given)
    assert (found[EAST].api, found[EAST].smtp) == ("https://api.example.com", "out.us.example.com")
    assert (found[WEST].api, found[WEST].smtp) == ("https://api.eu.example.com", "smtp.eu.example.com")
    assert {"out.eu.example.com", "smtp.eu.example.com", "api.eu.example.com", "spf.us.example.com"} <= regions.service_names(given)
    assert regions.own_names(load(regions=TWO, region=WEST)) == ("mail.eu.example.com", "out.eu.example.com", "smtp.eu.example.com")


def test_own_names_are_in_lower_case() -> None:
    """Those of recipients are, because the case of a domain does not matter (5321 §2.4)."""
    given = load(delivery={"ehlo_name": "Out.Example.com"}, smtp={"listen": {}, "names": ["MX.example.com", "out.example.com"]})
    assert regions.own_names(given) == ("out.example.com", "mx.example.com")


def test_one_region_needs_no_settings_of_regions() -> None:
    given = load(region="here", delivery={"ehlo_name": "out.example.com"}, domains={"spf_include": "spf.example.com"})
    assert regions.hosts(given) == {"here": "out.example.com"} and regions.spf_includes(given) == {"here": "spf.example.com"}


def test_the_former_setting_of_hosts_still_works() -> None:
    hosts = {EAST: "out.us.example.com", WEST: "out.eu.example.com"}
    given = load(domains={"hosts": hosts}, delivery={"ehlo_name": "mx.example.com"})
    assert regions.hosts(given) == hosts and given.delivery.ehlo_name == "mx.example.com"
    assert regions.hosts(load(domains={"hosts": {}}, delivery={"ehlo_name": "mx.example.com"})) == {EAST: "mx.example.com"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"regions": {EAST: {}}}, "regions.us-east-1.host is missing"),
        ({"regions": TWO, "region": "mars"}, "expected one of: us-east-1, eu-west-1"),
        ({"regions": {"no region": {"host": "out.example.com"}}, "region": EAST}, "expected the name of a region"),
        ({"regions": {EAST: {"hosts": "x"}}}, "regions.us-east-1.hosts does not exist"),
        ({"regions": {EAST: {"api": "api.example.com"}}}, "regions.us-east-1.api is 'api.example.com'; expected a URL"),
        ({"regions": {EAST: "out.example.com"}}, "expected tables of settings, such as [regions.NAME]"),
        ({"regions": TWO, "domains": {"hosts": {EAST: "x.example"}}}, "domains.hosts has been replaced by regions.NAME.host"),
    ],
)
def test_wrong_settings_of_regions_are_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        load(**given)
    assert words in str(wrong.value)


def test_the_former_environment_variable_still_works(tmp_path: Path) -> None:
    tables = {"base_url": "https://api.example.com", "database": {"url": "postgresql://x"}, "smtp": {"listen": {}}}
    environ = {"MAILSVC_DOMAINS__HOSTS": '{ "us-east-1" = "out.us.example.com" }'}
    assert regions.hosts(loading.check(tables, environ)) == {EAST: "out.us.example.com"}
    (file := tmp_path / "mailsvc.toml").write_text('domains.hosts = { us-east-1 = "out.us.example.com" }')
    found = loading.former_names(file, environ)
    assert found == [("domains.hosts", "regions.NAME.host"), ("MAILSVC_DOMAINS__HOSTS", "regions.NAME.host")]


@pytest.mark.parametrize("region", [EAST, WEST])
def test_the_settings_in_the_documentation_are_valid(region: str) -> None:
    text = (ROOT / "docs/regions.md").read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    given = loading.check(tomllib.loads(text), {"MAILSVC_REGION": region})
    assert set(regions.all_regions(given)) == {EAST, WEST}
    assert source_addresses(given.delivery).all[0].ehlo == {EAST: "out.us.example.com", WEST: "out1.eu.example.com"}[region]
