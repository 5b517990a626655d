"""The domains API: valid and invalid requests, responses, accounts. For DNS see tests/domains."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.http.api import Api
from mailsvc.http.resources.domains import DomainContext
from mailsvc.runtime.budget import Budgets
from mailsvc.store.domains.reports import Reports
from mailsvc.store.people.api_keys import Keys, is_well_formed
from mailsvc.store.people.residence import RegionRefused, Residence
from mailsvc.store.postgres.pool import Pool
from tests.domains.rig import Rig
from tests.http.api_rig import ApiRig, at_once
from tests.http.contract import Contract

NOBODY = "0190a8e6-0000-7000-8000-000000000001"


@attrs.frozen
class DomainApi:
    rig: Rig
    http: ApiRig
    sending_key: str

    async def request(self, method: str, path: str, body: object = b"", key: str | None = None) -> Any:
        return await self.http.request(method, path, body, key)

    async def create(self, **fields: Any) -> Any:
        response = await self.request("POST", "/domains", {"name": "example.com", "region": "r1", **fields})
        assert response.status == 201, response.body
        return response.json


@pytest_twisted.async_yield_fixture
async def api(pool: Pool) -> Any:
    from twisted.internet import reactor

    rig = await Rig.start(pool, reactor)
    keys: Any = Keys(pool, reactor)
    foreign = await rig_account(rig, "another")
    _, token = await keys.create(rig.account.id, "a key", "full_access")
    _, sending = await keys.create(rig.account.id, "a key", "sending_access")
    _, foreign_token = await keys.create(foreign, "a key", "full_access")
    unused: Any = None
    api = Api(
        reactor=reactor, keys=keys, well_formed=is_well_formed, intake=unused, emails=unused, messages=unused, links=unused,
        rate=RateLimit(reactor, 10_000), budgets=Budgets.of(1 << 26, 1 << 30, reactor), in_thread=at_once, checks={},
        domains=DomainContext(rig.domains, rig.maintenance, rig.maintenance.publishing, Reports(pool)),
        requests=unused, sessions=unused, rollups=unused, link_secrets=lambda: (b"",),
    )  # type: ignore[arg-type]  # fmt: skip
    http = ApiRig(
        api.site(), pool, token, foreign_token, rig.account.id, rig.account.id, keys, unused, Contract(api.document()), unused, unused
    )  # fmt: skip
    yield DomainApi(rig, http, sending)
    await rig.dns.stop()


async def rig_account(rig: Rig, name: str) -> Any:
    from mailsvc.store.people.accounts import Accounts

    return (await Accounts(rig.pool, rig.clock).create(name)).id


@pytest_twisted.ensureDeferred
async def test_new_domain_has_the_keys_that_libraries_need(api: DomainApi) -> None:
    domain = await api.create()
    assert "object" not in domain
    needed = {"id", "name", "status", "created_at", "region", "capabilities", "records", "open_tracking", "click_tracking"}
    assert needed <= set(domain)
    assert domain["capabilities"] == {"sending": "enabled", "receiving": "disabled"}
    for record in domain["records"]:
        assert {"record", "name", "type", "ttl", "status", "value"} <= set(record) and isinstance(record["ttl"], str)
        assert (record["record"], record["type"]) in {("SPF", "MX"), ("SPF", "TXT"), ("DKIM", "TXT")}
    mx, spf, rsa, _ = domain["records"]
    assert (mx["name"], mx["value"], mx["priority"]) == ("send", "out.example.net", 10)
    assert (spf["name"], spf["value"], "priority" in spf) == ("send", "v=spf1 a:out.example.net ~all", False)
    parts = rsa["value"].split('" "')
    assert rsa["name"].endswith("._domainkey") and [len(part) <= 256 for part in parts] == [True, True]
    assert [(a["record"], a["name"], a["value"]) for a in domain["advice"]] == [("DMARC", "_dmarc", "v=DMARC1; p=none;")]
    read = (await api.request("GET", f"/domains/{domain['id']}")).json
    assert read["object"] == "domain" and read["records"] == domain["records"]


@pytest_twisted.ensureDeferred
async def test_a_pinned_account_has_domains_in_its_region_only(api: DomainApi) -> None:
    account, residences = api.rig.account.id, api.rig.domains.residences
    await residences.set(account, Residence("r2"), [])
    assert (await api.request("POST", "/domains", {"name": "home.example"})).json["region"] == "r2", "the default is home"
    other = (await api.request("POST", "/domains", {"name": "other.example", "region": "r1"})).json
    with pytest.raises(RegionRefused, match=r"other\.example"):
        await residences.set(account, Residence("r2", pinned=True), [])
    await api.rig.domains.delete(account, UUID(other["id"]))
    await residences.set(account, Residence("r2", pinned=True), [])
    for path in ("/domains", "/domains/claim"):
        refused = await api.request("POST", path, {"name": "third.example", "region": "r1"})
        assert refused.problem == (422, "invalid_region")
        assert refused.json["message"] == "The `region` field must be r2: the data of this account stays in that region."
    assert (await api.request("POST", "/domains", {"name": "third.example", "region": "r2"})).status == 201


@pytest_twisted.ensureDeferred
async def test_the_region_of_a_domain_is_changed_with_its_records_and_never_by_patch(api: DomainApi) -> None:
    created = await api.create()
    path = f"/domains/{created['id']}"
    await api.request("PATCH", path, {"region": "r2"})
    assert (await api.request("GET", path)).json["region"] == "r1"
    domain = await api.rig.domains.called("example.com")
    assert domain is not None
    await api.rig.maintenance.move(domain, "r2")
    moved = (await api.request("GET", path)).json
    mx, spf, *_ = moved["records"]
    assert (moved["region"], mx["value"], spf["value"]) == ("r2", "out.example.org", "v=spf1 a:out.example.org ~all")
    assert moved["history"][0]["message"] == "Moved from the region r1 to r2."
    assert (await api.rig.events())[-1][0] == "domain.updated"
    with pytest.raises(RegionRefused, match="must be one of: r1, r2"):
        await api.rig.maintenance.move(domain, "r3")


@pytest_twisted.ensureDeferred
async def test_domain_never_shows_private_keys(api: DomainApi) -> None:
    domain = await api.create()
    stored = await api.rig.pool.rows("SELECT sealed_key FROM dkim_keys")
    assert len(stored) == 2
    bodies = [(await api.request("GET", path)).body for path in (f"/domains/{domain['id']}", "/domains")]
    shown = str(await api.rig.events()) + str(bodies)
    for key in await api.rig.domains.signing_keys((await api.rig.domains.called("example.com")).id):  # type: ignore[union-attr]
        assert key.der.hex() not in shown and repr(key.der) not in shown


@pytest.mark.parametrize(
    ("fields", "status", "name", "words"),
    [
        ({"name": None}, 422, "missing_required_field", "name"),
        ({"name": ""}, 422, "missing_required_field", "name"),
        ({"name": 7}, 422, "validation_error", "must be a string"),
        ({"name": "co.uk"}, 422, "validation_error", "public suffix"),
        ({"name": "out.example.net"}, 422, "validation_error", "reserved for this service"),
        ({"name": "[192.0.2.1]"}, 422, "validation_error", "IP address"),
        ({"name": "a" * 300}, 422, "validation_error", "253 characters"),
        ({"region": "mars"}, 422, "invalid_region", "The `region` field must be one of: r1"),
        ({"region": 1}, 422, "validation_error", "region"),
        ({"custom_return_path": "1a"}, 422, "validation_error", "custom_return_path"),
        ({"custom_return_path": "a-"}, 422, "validation_error", "custom_return_path"),
        ({"custom_return_path": "a" * 64}, 422, "validation_error", "custom_return_path"),
        ({"custom_return_path": "a.b"}, 422, "validation_error", "custom_return_path"),
        ({"tls": "none"}, 422, "validation_error", "tls"),
        ({"click_tracking": "no"}, 422, "validation_error", "click_tracking"),
        ({"tracking_subdomain": 0}, 422, "validation_error", "`tracking_subdomain` field must be a string"),
        ({"tracking_subdomain": False}, 422, "validation_error", "`tracking_subdomain` field must be a string"),
        ({"tracking_subdomain": "a.b"}, 422, "validation_error", "tracking_subdomain"),
        ({"tracking_subdomain": "WWW"}, 422, "validation_error", "`tracking_subdomain` field must not be `www`"),
        ({"tracking_subdomain": "send"}, 422, "validation_error", "`tracking_subdomain` field must not be `send`"),
        ({"tracking_subdomain": "Bounce", "custom_return_path": "bounce"}, 422, "validation_error", "must not be `bounce`"),
        ({"capabilities": "all"}, 422, "validation_error", "capabilities"),
        ({"capabilities": {"sending": True}}, 422, "validation_error", "capabilities.sending"),
        ({"capabilities": {"sending": "disabled"}}, 422, "validation_error", "at least one"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_invalid_field_is_named_and_nothing_is_stored(api: DomainApi, fields: Any, status: int, name: str, words: str) -> None:
    response = await api.request("POST", "/domains", {"name": "example.com", **fields})
    assert response.problem == (status, name)
    assert words in response.json["message"]
    assert (await api.rig.pool.rows("SELECT count(*) FROM domains")) == [(0,)] and await api.rig.events() == []


@pytest_twisted.ensureDeferred
async def test_domain_name_is_unique_per_account(api: DomainApi) -> None:
    await api.create()
    response = await api.request("POST", "/domains", {"name": "EXAMPLE.com."})
    assert response.problem == (403, "validation_error")
    assert response.json["message"] == "The `example.com` domain has been registered already."
    assert (await api.rig.pool.rows("SELECT count(*) FROM dkim_keys")) == [(2,)]
    other = await api.request("POST", "/domains", {"name": "example.com"}, api.http.foreign_key)
    assert (other.status, other.json["status"]) == (201, "not_started")
    keys = await api.rig.pool.rows("SELECT count(DISTINCT public_key) FROM dkim_keys")
    assert keys == [(4,)]


@pytest_twisted.ensureDeferred
async def test_international_name_is_stored_as_a_labels_and_shown_as_u_labels(api: DomainApi) -> None:
    domain = await api.create(name="Bücher.example")
    assert (domain["name"], domain["name_ascii"]) == ("bücher.example", "xn--bcher-kva.example")
    assert domain["records"][0]["name"] == "send" and "warning" not in domain
    assert "mistaken" in (await api.create(name="аррӏе.example"))["warning"]


@pytest_twisted.ensureDeferred
async def test_domain_settings_are_stored_and_changed(api: DomainApi) -> None:
    domain = await api.create(custom_return_path="Bounce", tls="enforced", capabilities={"receiving": "enabled"}, open_tracking=False)
    assert domain["records"][0]["name"] == "bounce"
    path = f"/domains/{domain['id']}"
    assert (await api.request("PATCH", path, {"capabilities": {"sending": "disabled"}, "click_tracking": False})).json == {
        "object": "domain",
        "id": domain["id"],
    }
    read = (await api.request("GET", path)).json
    assert (read["tls"], read["capabilities"]) == ("enforced", {"sending": "disabled", "receiving": "enabled"})
    assert (await api.request("PATCH", path, {"capabilities": {"receiving": "disabled"}})).problem == (422, "validation_error")
    assert (await api.request("PATCH", path, {"tracking_subdomain": "bounce"})).problem == (422, "validation_error")
    assert (await api.request("PATCH", path, [])).problem == (422, "validation_error")
    assert (await api.request("PATCH", path, {})).status == 200
    assert (await api.request("GET", path)).json["history"][0]["message"] == "Settings changed: sending off, click_tracking off."
    assert [kind for kind, _ in await api.rig.events()] == ["domain.created", "domain.updated"]


@pytest_twisted.ensureDeferred
async def test_tracking_is_off_by_default_and_switched_on_and_off(api: DomainApi) -> None:
    domain = await api.create()
    assert (domain["open_tracking"], domain["click_tracking"], domain["tracking_subdomain"]) == (False, False, None)
    assert domain["tracking_host"] is None and not [each for each in domain["records"] if each["record"] == "Tracking"]
    path = f"/domains/{domain['id']}"
    await api.request("PATCH", path, {"open_tracking": True})
    read = (await api.request("GET", path)).json
    assert (read["open_tracking"], read["click_tracking"], read["tracking_host"]) == (True, False, "track.example.net")
    await api.request("PATCH", path, {"open_tracking": False, "click_tracking": True, "tracking_subdomain": "Links"})
    [row] = (await api.request("GET", "/domains")).json["data"]
    assert (row["open_tracking"], row["click_tracking"]) == (False, True)
    read = (await api.request("GET", path)).json
    assert (read["tracking_subdomain"], read["tracking_host"]) == ("links", None)
    tracking = {"record": "Tracking", "type": "CNAME", "ttl": "Auto", "status": "not_started"}
    assert read["records"][-1] == tracking | {"name": "links.example.com", "value": "track.example.net"}
    assert "tracking_subdomain links" in read["history"][0]["message"]


@pytest_twisted.ensureDeferred
async def test_tracking_subdomain_can_be_changed_but_not_removed(api: DomainApi) -> None:
    domain = await api.create(tracking_subdomain="l0", click_tracking=True)
    path = f"/domains/{domain['id']}"
    for subdomain in ["", *(f"l{number}" for number in range(1, 10)), "l3"]:
        assert (await api.request("PATCH", path, {"tracking_subdomain": subdomain})).status == 200
    read = (await api.request("GET", path)).json
    names = [each["name"].partition(".")[0] for each in read["records"] if each["record"] == "Tracking"]
    assert names == ["l0", "l1", "l2", "l4", "l5", "l6", "l7", "l8", "l9", "l3"] and read["tracking_subdomain"] == "l3"
    refused = await api.request("PATCH", path, {"tracking_subdomain": "l10"})
    assert refused.problem == (422, "validation_error") and "at most 10" in refused.json["message"]


@pytest_twisted.ensureDeferred
async def test_tracking_is_refused_where_no_host_serves_it(api: DomainApi) -> None:
    object.__setattr__(api.rig.maintenance.publishing, "tracking_host", None)
    for fields in {"open_tracking": True}, {"click_tracking": True}, {"tracking_subdomain": "links"}:
        response = await api.request("POST", "/domains", {"name": "example.com", **fields})
        assert response.problem == (422, "validation_error") and "does not track" in response.json["message"]
    assert (await api.create(open_tracking=False))["open_tracking"] is False


@pytest_twisted.ensureDeferred
async def test_domain_with_sending_disabled_cannot_send(api: DomainApi) -> None:
    domain = await api.rig.verified(await api.rig.add())
    await api.request("PATCH", f"/domains/{domain.id}", {"capabilities": {"sending": "disabled", "receiving": "enabled"}})
    domain = await api.rig.now_of(domain)
    assert not domain.may_send and domain.missing == "Sending is turned off for this domain."


@pytest_twisted.ensureDeferred
async def test_list_of_domains_is_complete_without_parameters(api: DomainApi) -> None:
    ids = [(await api.create(name=f"d{n}.example"))["id"] for n in range(25)][::-1]
    whole = (await api.request("GET", "/domains")).json
    assert ([d["id"] for d in whole["data"]], whole["has_more"], whole["object"]) == (ids, False, "list")
    assert "records" not in whole["data"][0] and "capabilities" in whole["data"][0]
    first = (await api.request("GET", "/domains?limit=10")).json
    assert ([d["id"] for d in first["data"]], first["has_more"]) == (ids[:10], True)
    rest = (await api.request("GET", f"/domains?limit=20&after={ids[9]}")).json
    assert ([d["id"] for d in rest["data"]], rest["has_more"]) == (ids[10:], False)
    before = (await api.request("GET", f"/domains?limit=2&before={ids[10]}")).json
    assert ([d["id"] for d in before["data"]], before["has_more"]) == (ids[8:10], True)
    assert (await api.request("GET", "/domains?limit=0")).problem == (422, "validation_error")


@pytest_twisted.ensureDeferred
async def test_domain_endpoints_hide_other_accounts_domains(api: DomainApi) -> None:
    domain = await api.create()
    foreign = api.http.foreign_key
    for method, path, body in [
        ("GET", f"/domains/{domain['id']}", b""),
        ("GET", f"/domains/{domain['id']}/reports", b""),
        ("PATCH", f"/domains/{domain['id']}", {"tls": "enforced"}),
        ("POST", f"/domains/{domain['id']}/verify", b""),
        ("DELETE", f"/domains/{domain['id']}", b""),
    ]:
        for key, where in ((foreign, path), (None, path.replace(domain["id"], NOBODY))):
            response = await api.request(method, where, body, key)
            assert response.problem == (404, "not_found") and response.json["message"] == "Domain not found"
        assert (await api.request(method, path.replace(domain["id"], "7"), body)).problem == (422, "invalid_parameter")
        assert (await api.request(method, path, body, api.sending_key)).problem == (401, "restricted_api_key")
    assert (await api.request("GET", "/domains", key=foreign)).json["data"] == []
    assert (await api.request("GET", f"/domains/{domain['id']}")).json["tls"] == "opportunistic"


@pytest_twisted.ensureDeferred
async def test_verify_schedules_a_check(api: DomainApi) -> None:
    domain = await api.create()
    path = f"/domains/{domain['id']}"
    assert (await api.request("POST", f"{path}/verify")).json == {"object": "domain", "id": domain["id"]}
    read = (await api.request("GET", path)).json
    assert (read["status"], {r["status"] for r in read["records"]}, read["checked_at"]) == ("pending", {"pending"}, None)
    api.rig.dns.zones["example.com"] = {"NS": ["ns.example.com."]}
    api.rig.dns.zones["ns.example.com"] = {"A": ["127.0.0.1"]}
    await api.rig.round()
    read = (await api.request("GET", path)).json
    assert read["status"] == "pending" and read["next_check_at"]
    check = read["records"][0]["check"]
    assert check == {
        "found": [],
        "where": "the nameservers of example.com",
        "problem": "missing",
        "message": "There is no MX record at send.example.com. Add it.",
    }


@pytest_twisted.ensureDeferred
async def test_deleted_domain_name_can_be_added_again(api: DomainApi) -> None:
    domain = await api.create()
    assert (await api.request("DELETE", f"/domains/{domain['id']}")).json == {"object": "domain", "id": domain["id"], "deleted": True}
    assert (await api.request("DELETE", f"/domains/{domain['id']}")).problem == (404, "not_found")
    again = await api.request("POST", "/domains", {"name": "example.com"}, api.http.foreign_key)
    assert again.status == 201 and again.json["id"] != domain["id"]
    kinds = await api.rig.events()
    assert [kind for kind, _ in kinds] == ["domain.created", "domain.deleted", "domain.created"]
    deleted = kinds[1][1]
    assert (deleted["id"], deleted["name"], deleted["status"]) == (domain["id"], "example.com", "not_started")
    assert deleted["created_at"].endswith("Z") and len(deleted["records"]) == 4
