"""Each check of the doctor: its findings and their remedies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mailsvc.monitoring import sizes
from mailsvc.monitoring.doctor import Certificate, Doctor, Finding
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary, reversed_name
from mailsvc.store.logs.retention import Size

NOW = datetime(2026, 6, 1, tzinfo=UTC)
GOOD = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "max_connections": "100",
    "superuser_reserved_connections": "3", "server_version": "18.1", "server_version_num": "180001",
}  # fmt: skip


class DoctorRig:
    """A machine without problems, until a test changes something."""

    def __init__(self) -> None:
        self.mxs: Any = Records("probe.example", (Mx(10, "mx.probe.example"),))
        self.hosts: dict[str, Any] = {
            "mx.probe.example": Records("mx", ("93.184.216.34", "2606:2800:220::1")),
            "out.example.com": Records("out.example.com", ("198.51.99.10",)),
        }
        self.pointers: dict[str, Any] = {"198.51.99.10": Records("x", ("out.example.com",))}
        self.greetings: dict[str, str] = {}
        self.ahead = 0.0
        self.database: Any = dict(GOOD)
        self.certificate: Any = Certificate(NOW + timedelta(days=60), ("smtp.example.com",))
        self.sources: Any = [(None, "out.example.com")]
        self.probe: str | None = "probe.example"
        self.looked_up: list[str] = []

    async def mx(self, domain: str) -> Any:
        self.looked_up.append(domain)
        return self.mxs

    async def addresses(self, host: str) -> Any:
        self.looked_up.append(host)
        return self.hosts.get(host, NxDomain(host))

    async def ptr(self, address: str) -> Any:
        return self.pointers.get(address, NxDomain(address))

    async def greet(self, address: str, port: int) -> str | None:
        assert port == 25
        return self.greetings.get(address)

    def find(self, check: str) -> Finding:
        async def ahead() -> float:
            return self.ahead

        async def database() -> Any:
            if isinstance(self.database, Exception):
                raise self.database
            return self.database

        doctor = Doctor(
            self, self.sources, self.greet, self.probe, ("list.example",), ahead, database, 10,
            lambda: self.certificate, lambda: NOW,
        )  # fmt: skip
        found: list[Any] = []
        Deferred.fromCoroutine(doctor.examine()).addCallback(found.extend)
        by_name = {each.check: each for each in found}
        for each in found:
            assert each.state != "error" or each.remedy, each
        return by_name[check]


def test_a_machine_without_problems_is_ok() -> None:
    rig = DoctorRig()
    for check in (
        "dns",
        "port 25 over IPv4",
        "port 25 over IPv6",
        "PTR of 198.51.99.10",
        "list.example for 198.51.99.10",
        "clock",
        "certificate",
    ):
        assert rig.find(check).state == "ok", check
    assert rig.find("postgres fsync").state == "ok"


def change(**values: Any) -> Callable[[DoctorRig], None]:
    def apply(rig: DoctorRig) -> None:
        for name, value in values.items():
            held = getattr(rig, name)
            if isinstance(held, dict) and isinstance(value, dict):
                held.update(value)
            else:
                setattr(rig, name, value)

    return apply


LISTED = "10.99.51.198.list.example"


@pytest.mark.parametrize(
    ("check", "state", "change", "text"),
    [
        ("dns", "error", change(mxs=Temporary("no answer")), "no answer"),
        ("port 25 over IPv4", "error", change(greetings={"93.184.216.34": "did not answer"}), "open outgoing port 25"),
        ("port 25 over IPv6", "warning", change(greetings={"2606:2800:220::1": "has no route"}), "Other servers are reached over IPv4"),
        ("port 25 over IPv6", "warning", change(hosts={"mx.probe.example": Records("mx", ("93.184.216.34",))}), "has no IPv6 address"),
        ("ehlo name", "error", change(hosts={"out.example.com": NxDomain("x")}), "Add an A record"),
        ("PTR of 198.51.99.10", "error", change(pointers={"198.51.99.10": NxDomain("x")}), "there is none"),
        ("ehlo name", "warning", change(hosts={"out.example.com": Temporary("no answer")}), "could not be looked up: no answer."),
        (
            "PTR of 198.51.99.10",
            "warning",
            change(pointers={"198.51.99.10": Temporary("no answer")}),
            "It could not be looked up",
        ),
        (
            "PTR of 198.51.99.10",
            "error",
            change(pointers={"198.51.99.10": Records("x", ("host10.provider.example",))}),
            "host10.provider.example",
        ),
        ("PTR of 198.51.99.11", "error", change(sources=[("198.51.99.11", "out.example.com")]), "does not resolve to 198.51.99.11"),
        ("PTR of 10.0.0.1", "warning", change(hosts={"out.example.com": Records("x", ("10.0.0.1",))}), "private"),
        ("list.example for 198.51.99.10", "error", change(hosts={LISTED: Records("x", ("127.0.0.2",))}), "request removal"),
        (
            "list.example for 198.51.99.10",
            "warning",
            change(hosts={name: Records("x", ("127.0.0.2",)) for name in (LISTED, "1.0.0.127.list.example")}),
            "The list was given up",
        ),
        ("list.example for 198.51.99.10", "warning", change(hosts={LISTED: Records("x", ("192.0.2.1",))}), "did not answer"),
        ("list.example for 198.51.99.10", "warning", change(hosts={LISTED: Records("x", ("127.255.255.254",))}), "your own resolver"),
        ("list.example for 198.51.99.10", "warning", change(hosts={LISTED: Temporary("x")}), "did not answer"),
        ("clock", "error", change(ahead=61.0), "61 s ahead of"),
        ("clock", "error", change(ahead=-61.0), "61 s behind"),
        ("certificate", "error", change(certificate=Certificate(NOW - timedelta(days=1), ())), "expired on 2026-05-31"),
        ("certificate", "warning", change(certificate=Certificate(NOW + timedelta(days=3), ())), "in 3 days"),
        ("certificate", "error", change(certificate="The certificate cannot be read."), "smtp.certbot"),
        ("certificate", "ok", change(certificate=None), "Not needed"),
        ("postgres synchronous_commit", "error", change(database={"synchronous_commit": "off"}), "Set synchronous_commit = on"),
        ("postgres", "error", change(database={"server_version_num": "140001", "server_version": "14.1"}), "15 or newer"),
        ("postgres max_connections", "error", change(database={"max_connections": "12"}), "Raise max_connections"),
        ("postgres", "error", change(database=RuntimeError("it is away")), "it is away"),
    ],
)
def test_each_problem_is_found_and_has_a_remedy(check: str, state: str, change: Callable[[DoctorRig], None], text: str) -> None:
    rig = DoctorRig()
    change(rig)
    found = rig.find(check)
    assert found.state == state
    assert text in f"{found.found} {found.remedy}"


def test_a_closed_network_is_checked_without_the_internet() -> None:
    rig = DoctorRig()
    rig.probe = None
    found = rig.find("internet")
    assert found.state == "warning" and "Not checked" in found.found and "--probe DOMAIN" in found.remedy
    assert set(rig.looked_up) == {"out.example.com"}
    assert rig.find("PTR of 198.51.99.10").state == rig.find("clock").state == "ok"


def test_addresses_are_reversed_for_blocklists() -> None:
    assert reversed_name("192.0.2.1") == "1.2.0.192"
    assert reversed_name("2001:db8::1").startswith("1.0.0.0.0.0.")


def test_sizes_show_data_kept_for_too_long() -> None:
    kept = {
        "emails": Size(1_234_567, NOW - timedelta(days=30)),
        "bodies": Size(512, None),
        "attempts": Size(2_000_000_000, NOW - timedelta(days=40)),
    }
    emails, bodies, attempts = sizes.findings(kept, dict.fromkeys(kept, 30), NOW)
    assert (emails.check, emails.state, emails.found) == ("stored emails", "ok", "1.2 MB since 2026-05-02; kept for 30 days.")
    assert (bodies.state, bodies.found) == ("ok", "512 bytes, empty; kept for 30 days.")
    assert (attempts.state, attempts.found) == ("warning", "1.9 GB since 2026-04-22; kept for 30 days.") and "queue list" in attempts.remedy
