"""Checks the installation, for `mailsvc doctor`: keys, processes, ports, trusted networks, accounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import attrs

from mailsvc.mail.address import parse_mailbox
from mailsvc.monitoring.doctor import Finding, not_looked_up
from mailsvc.net import address_guard
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import Domain
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.upgrade_check import Plan
from mailsvc.store.queue.processes import HEARTBEAT, SILENT

AUDIT_UNSENT = 1000  # lines; more are a sign that the destination does not take them
GREETING = ("25", "587", "2587")  # ports whose server sends its greeting in clear

UNLOCK = "Find out which session has the lock, and end it or wait for it (docs/operations.md, When something breaks)."
ALONE = "Nothing else was checked without it."


@attrs.frozen
class Process:
    """A live process. `silent`: seconds since its last heartbeat."""

    name: str
    version: str
    roles: Sequence[str]
    silent: float = 0.0


@attrs.frozen
class Facts:
    """What is read from the database. `held` is why all mail is held, if it is; `control` why no daemon listens on the control
    socket, although one runs on this machine.
    """

    processes: Sequence[Process]
    held: str | None
    accounts: int
    sending: int  # domains that are ready to send
    control: str | None = None


def findings(settings: Settings, facts: Facts, release: str) -> list[Finding]:
    """Checks the settings and the database, without network access."""
    return [*_keys(settings), *_files(settings, facts.control), *_processes(facts, release), *_customers(facts)]


def migrations(plan: Plan) -> list[Finding]:
    """Whether a database in use lacks migrations of this release. To apply them can block writes, so it is left to the operator."""
    if not plan.pending or not plan.applied:
        return []
    lacks = "1 migration" if len(plan.pending) == 1 else f"{len(plan.pending)} migrations"
    remedy = "Run `mailsvc upgrade --check` to see what that locks, then `mailsvc upgrade`. Nothing else was checked in the database."
    return [Finding("database", "error", f"It lacks {lacks} of this release.", remedy)]


def _keys(settings: Settings) -> list[Finding]:
    path = settings.secrets.key_file
    if settings.secrets.key is not None or not path.exists():
        return [Finding("encryption key", "ok", "It is set in the environment.")]
    if path.stat().st_mode & 0o077:
        return [
            Finding("encryption key", "error", f"Other users can read {path}.", f"Run `chmod 600 {path}`, then `mailsvc secrets rotate`.")
        ]
    return [Finding("encryption key", "ok", f"Only its owner can read {path}.")]


def encrypted(wrong: str | None) -> Finding:
    """Checks the secrets in the database. `wrong` is why the keys cannot decrypt them, if so."""
    if wrong is None:
        return Finding("encrypted secrets", "ok", "A sample of each kind was decrypted.")
    return Finding("encrypted secrets", "error", wrong, "Restore the key file from its backup. mailsvc does not start without it.")


def body_keys(missing: Mapping[UUID, str], left: Sequence[Path]) -> list[Finding]:
    """Checks that each account with encrypted messages has its key here. `left`: files that no account needs."""
    remedy = "Until then, mail of this account is neither accepted nor sent (docs/operations.md, Encrypted messages)."
    found = [Finding(f"encrypted messages of {account}", "error", text, remedy) for account, text in missing.items()]
    gone = "It belongs to no account: it was deleted on another machine, or `mailsvc account encrypt` was interrupted."
    found += [Finding(f"key file {path}", "warning", gone, "If the account was deleted, delete the file and its copies.") for path in left]
    return found or [Finding("encrypted messages", "ok", "The keys of all accounts that have encrypted messages are here.")]


def locked(problem: str) -> Finding:
    """`problem`: what `write_check.locked` returns."""
    return Finding("database", "error", f"No mail is accepted: {problem}.", f"{UNLOCK} {ALONE}")


def writes(problem: str | None) -> Finding:
    """Checks that Postgres can write. `problem` is why it cannot, if so."""
    if problem is None:
        return Finding("postgres writes", "ok", "Nothing prevents it from writing.")
    remedy = "Free some space, or see its log: until it can write, no mail is accepted. mailsvc does not need a restart."
    return Finding("postgres writes", "error", f"It cannot write: {problem}.", remedy)


def audit_log(weaknesses: Sequence[str]) -> Finding:
    """Checks that the daemon's database role cannot change the audit log."""
    if not weaknesses:
        return Finding("audit log", "ok", "The database role of mailsvc can add lines, and cannot change or delete them.")
    remedy = "Set up a role of its own with `mailsvc audit protect` (docs/operations.md)."
    return Finding("audit log", "warning", f"The database role of mailsvc can change it: {'; '.join(weaknesses)}.", remedy)


def audit_sent(name: str, unsent: int) -> Finding:
    """Checks that the audit log reaches a destination outside."""
    if unsent <= AUDIT_UNSENT:
        return Finding(f"audit log by {name}", "ok", f"{unsent} lines have not been sent yet.")
    remedy = "See the log for why they are not taken. While you set up a destination, the whole log is sent first."
    return Finding(f"audit log by {name}", "warning", f"{unsent} lines have not been sent yet.", remedy)


def _files(settings: Settings, unreachable: str | None) -> list[Finding]:
    missing: list[tuple[str, Path | None, str]] = [
        ("control socket", settings.control.socket, "Set control.socket, so that `mailsvc queue` can reach the daemon."),
        ("restore marker", settings.database.restore_marker, "Set database.restore_marker, so that a restored database is detected."),
        ("erasure journal", settings.privacy.journal, "Set privacy.journal, so that erased data does not come back from a backup."),
    ]
    found = [
        Finding(name, "ok", f"It is {path}.") if path is not None else Finding(name, "warning", "Not set.", remedy)
        for name, path, remedy in missing
    ]
    if settings.control.socket is not None and unreachable is not None:
        remedy = "Make sure that the daemon runs with the same control.socket, and run `mailsvc` as the daemon's user."
        found[0] = Finding("control socket", "warning", f"{settings.control.socket} cannot be used: {unreachable}.", remedy)
    return found


def _processes(facts: Facts, release: str) -> list[Finding]:
    if not facts.processes:
        remedy = (
            "Run `systemctl enable --now mailsvc` (`mailsvc@1` with several processes), or `docker compose up --detach` with containers. "
            "If it stops, see `journalctl -u 'mailsvc*'` or `docker compose logs mailsvc`."
        )
        return [Finding("processes", "error", "None is running.", remedy)]
    roles = {role for process in facts.processes for role in process.roles}
    found = [Finding("processes", "ok", f"{len(facts.processes)} running.")]
    silent = [f"{process.name}, last seen {process.silent:.0f} s ago" for process in facts.processes if process.silent > 2 * HEARTBEAT]
    if silent:
        remedy = f"Each may have ended. After {SILENT:.0f} s without a heartbeat, others take over its mail."
        found = [Finding("processes", "warning", f"{len(facts.processes)} registered. Silent: {'; '.join(silent)}.", remedy)]
    missing = sorted({"http", "smtp", "delivery", "ledger", "webhooks", "domains"} - roles)
    if missing:
        found.append(
            Finding("roles", "warning", f"No process has: {', '.join(missing)}.", "If you need them, add them to the roles of a process.")
        )
    old = [process.name for process in facts.processes if process.version != release]
    if old:
        found.append(Finding("releases", "warning", f"Not running release {release}: {', '.join(old)}.", "Restart these processes."))
    if facts.held is not None:
        found.append(Finding("hold", "warning", facts.held, "Run `mailsvc queue list`, then `mailsvc queue release`."))
    return found


def _customers(facts: Facts) -> list[Finding]:
    if not facts.accounts:
        return [Finding("customers", "warning", "There are no accounts.", "Run `mailsvc account create NAME`.")]
    if not facts.sending:
        return [
            Finding(
                "customers",
                "warning",
                "No domain is ready to send.",
                "Run `mailsvc domain add NAME --account …`, then `mailsvc domain check NAME`.",
            )
        ]
    return [Finding("customers", "ok", f"{facts.accounts} accounts; {facts.sending} domains ready to send.")]


def sender(address: str | None, domain: Domain | None) -> Finding:
    """Checks that the service can send its own emails. `domain` is the sending domain of the setting `sender`, if there is one."""
    check = "sender"
    if address is None:
        remedy = 'Set it to an address of one of your sending domains, such as sender = "Example <no-reply@example.com>".'
        return Finding(check, "warning", "Not set: invitations, password resets and warnings are not sent.", remedy)
    name = parse_mailbox(address).domain
    if domain is None:
        remedy = f"Run `mailsvc domain add {name} --account …`, or set sender to an address of a domain that you have."
        return Finding(check, "error", f"{address} cannot send: no account has the domain {name}.", remedy)
    if domain.missing is not None:
        return Finding(check, "error", f"{address} cannot send. {domain.missing}", f"Run `mailsvc domain check {name}`.")
    return Finding(check, "ok", f"It is {address}, of the account {domain.account_id}.")


async def trusted(settings: Settings, find: Callable[[UUID], Awaitable[Caller | None]]) -> list[Finding]:
    """Checks the networks whose clients need neither TLS nor login."""
    return [_trusted(network, await find(UUID(key)), key) for network, key in settings.smtp.trusted_networks.items()]


def _trusted(network: str, caller: Caller | None, key: str) -> Finding:
    check = f"trusted network {network}"
    if caller is None:
        return Finding(
            check,
            "error",
            f"The API key {key} does not exist or was revoked.",
            "Set another key in smtp.trusted_networks. See `mailsvc key list`.",
        )
    if caller.suspended:
        return Finding(
            check, "error", f"The account {caller.account_id} is suspended.", "Set the key of another account in smtp.trusted_networks."
        )
    if address_guard.refusal(str(ip_network(network).network_address)) is None:
        return Finding(
            check, "warning", "It is a public network: its mail crosses the internet unencrypted.", "Use TLS and a login there instead."
        )
    return Finding(check, "ok", f"It sends without TLS and login, with the API key {key} of the account {caller.account_id}.")


def pages(missing: Sequence[str]) -> list[Finding]:
    """Checks the dashboard's static files. `missing`: files of npm packages that are not in this installation."""
    if not missing:
        return [Finding("dashboard", "ok", "All static files are installed.")]
    why = f"Missing: {', '.join(missing)}. Pages work, but do not update automatically and have no charts."
    return [Finding("dashboard", "warning", why, "Install a wheel built with `make wheel`.")]


async def outside(
    settings: Settings,
    addresses: Callable[[str], Awaitable[Records[str] | NxDomain | Temporary]],
    greet: Callable[[str, int], Awaitable[str | None]],
) -> list[Finding]:
    """Checks the API's name in DNS, and the SMTP ports on this machine."""
    found: list[Finding] = []
    url = urlsplit(settings.base_url or "")
    if url.hostname and "http" in settings.roles:
        answer = await addresses(url.hostname)
        known = answer.values if isinstance(answer, Records) else ()
        if isinstance(answer, Temporary):
            found.append(not_looked_up("base_url", f"The address of {url.hostname}", answer))
        elif not known:
            found.append(Finding("base_url", "error", f"{url.hostname} has no address.", "Add an A record (and AAAA) for it."))
        elif url.scheme != "https":
            found.append(Finding("base_url", "warning", "It is not an https URL.", "Put a reverse proxy with TLS in front of the API."))
        else:
            found.append(Finding("base_url", "ok", f"{url.hostname} resolves to {', '.join(known)}."))
    for number in (number for number in GREETING if number in settings.smtp.listen and "smtp" in settings.roles):
        if not _is_public(settings.smtp.listen[number], number):
            continue
        why = await greet("127.0.0.1", int(number))
        if why is not None:
            found.append(
                Finding(
                    f"port {number}",
                    "error",
                    f"It {why}.",
                    "Make sure that mailsvc is running and that no other program uses the port (ss -ltnp).",
                )
            )
        else:
            found.append(
                Finding(f"port {number}", "ok", "It sends a greeting. Test from another machine whether the firewall lets connections in.")
            )
    return found


def _is_public(endpoints: str, number: str) -> bool:
    """Whether one of the endpoints is this port on all addresses: mailsvc opened it, or systemd did."""
    return any(_is_open(each.split(":"), number) for each in endpoints.split())


def _is_open(endpoint: Sequence[str], number: str) -> bool:
    kind, first, *more = endpoint
    everywhere = first.removeprefix("port=") == number and not any(each.startswith("interface=") for each in more)
    return kind == "systemd" or (kind in ("tcp", "tcp6") and everywhere)  # tcp6 accepts IPv4, too
