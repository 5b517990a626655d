"""Whether each step of the installation was done, for `mailsvc doctor`: keys, processes, ports, the first customer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import attrs

from mailsvc.monitoring.doctor import Finding
from mailsvc.net import address_guard
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.settings.schema import Settings
from mailsvc.store.people.api_keys import Caller

GREETING = ("25", "587", "2587")  # ports whose server speaks first, in clear


@attrs.frozen
class Process:
    """One that lives."""

    name: str
    version: str
    roles: Sequence[str]


@attrs.frozen
class Facts:
    """What the database tells. `held`: why all mail is held, None: it is not."""

    processes: Sequence[Process]
    held: str | None
    accounts: int
    sending: int  # domains that may send


def findings(settings: Settings, facts: Facts, release: str) -> list[Finding]:
    """Of the settings and the database, nothing asked of others."""
    return [*_keys(settings), *_files(settings), *_processes(facts, release), *_customers(facts)]


def _keys(settings: Settings) -> list[Finding]:
    path = settings.secrets.key_file
    if settings.secrets.key is not None or not path.exists():
        return [Finding("encryption key", "good", "It is in the environment.")]
    if path.stat().st_mode & 0o077:
        return [Finding("encryption key", "bad", f"Others may read {path}.", f"chmod 600 {path}; then `mailsvc secrets rotate`.")]
    return [Finding("encryption key", "good", f"Only its owner may read {path}.")]


def encrypted(wrong: str | None) -> Finding:
    """Of the secrets in the database. `wrong`: why the keys do not decrypt them."""
    if wrong is None:
        return Finding("encrypted secrets", "good", "A sample of each kind can be decrypted.")
    return Finding("encrypted secrets", "bad", wrong, "Restore the key file from its backup; mailsvc does not start without it.")


def _files(settings: Settings) -> list[Finding]:
    missing: list[tuple[str, Path | None, str]] = [
        ("control socket", settings.control.socket, "Set control.socket, so that `mailsvc queue` reaches the daemon."),
        ("witness", settings.database.restore_marker, "Set database.restore_marker, so that a database that was set back is noticed."),
    ]
    return [
        Finding(name, "good", f"It is {path}.") if path is not None else Finding(name, "doubtful", "There is none.", remedy)
        for name, path, remedy in missing
    ]


def _processes(facts: Facts, release: str) -> list[Finding]:
    if not facts.processes:
        return [Finding("processes", "bad", "None is running.", "systemctl enable --now mailsvc; journalctl -u mailsvc says why it ended.")]
    roles = {role for process in facts.processes for role in process.roles}
    found = [Finding("processes", "good", f"{len(facts.processes)} run.")]
    missing = sorted({"http", "smtp", "delivery", "ledger", "webhooks", "domains"} - roles)
    if missing:
        found.append(Finding("roles", "doubtful", f"Nobody does: {', '.join(missing)}.", "Give them to a process, if they are wanted."))
    old = [process.name for process in facts.processes if process.version != release]
    if old:
        found.append(Finding("releases", "doubtful", f"Another release than {release} runs: {', '.join(old)}.", "Restart it."))
    if facts.held is not None:
        found.append(Finding("hold", "doubtful", facts.held, "`mailsvc queue list`, then `mailsvc queue release`."))
    return found


def _customers(facts: Facts) -> list[Finding]:
    if not facts.accounts:
        return [Finding("customers", "doubtful", "There is no account.", "mailsvc account create NAME")]
    if not facts.sending:
        return [Finding("customers", "doubtful", "No domain may send.", "mailsvc domain add NAME --account …; mailsvc domain check NAME")]
    return [Finding("customers", "good", f"{facts.accounts} accounts; {facts.sending} domains may send.")]


async def trusted(settings: Settings, find: Callable[[UUID], Awaitable[Caller | None]]) -> list[Finding]:
    """The networks that need neither TLS nor login at the relay."""
    return [_trusted(network, await find(UUID(key)), key) for network, key in settings.smtp.trusted_networks.items()]


def _trusted(network: str, caller: Caller | None, key: str) -> Finding:
    check = f"trusted network {network}"
    if caller is None:
        return Finding(check, "bad", f"The API key {key} was revoked, or never was.", "`mailsvc key list`; see smtp.trusted_networks.")
    if caller.suspended:
        return Finding(check, "bad", f"The account {caller.account_id} is suspended.", "Name another's key in smtp.trusted_networks.")
    if address_guard.refusal(str(ip_network(network).network_address)) is None:
        return Finding(
            check, "doubtful", "It is public: mail from there comes over lines of others in clear.", "Let it use TLS and a login."
        )
    return Finding(check, "good", f"Without TLS and login it sends with the API key {key} of the account {caller.account_id}.")


def pages(missing: Sequence[str]) -> list[Finding]:
    """Of the files that browsers get. `missing`: those of npm packages that did not come with this installation."""
    if not missing:
        return [Finding("dashboard", "good", "It has all of its files.")]
    why = f"There is no {' and no '.join(missing)}: its pages work, but do not follow by themselves, and have no charts."
    return [Finding("dashboard", "doubtful", why, "Install a wheel that `make wheel` has built.")]


async def outside(
    settings: Settings,
    addresses: Callable[[str], Awaitable[Records[str] | NxDomain | Temporary]],
    knock: Callable[[str, int], Awaitable[str | None]],
) -> list[Finding]:
    """The name of the API in DNS, and the ports of the relay on this machine."""
    found: list[Finding] = []
    url = urlsplit(settings.base_url or "")
    if url.hostname and "http" in settings.roles:
        answer = await addresses(url.hostname)
        known = answer.values if isinstance(answer, Records) else ()
        if not known:
            found.append(Finding("base_url", "bad", f"{url.hostname} has no address.", "Publish an A record (and AAAA) for it."))
        elif url.scheme != "https":
            found.append(Finding("base_url", "doubtful", "It is not https.", "Let a web server in front of the API end TLS."))
        else:
            found.append(Finding("base_url", "good", f"{url.hostname} is {', '.join(known)}."))
    for number in (number for number in GREETING if number in settings.smtp.listen and "smtp" in settings.roles):
        why = None if not _is_public(settings.smtp.listen[number]) else await knock("127.0.0.1", int(number))
        if why is not None:
            found.append(Finding(f"port {number}", "bad", f"It {why}.", "See that mailsvc runs, and who else has the port: ss -ltnp"))
        elif _is_public(settings.smtp.listen[number]):
            found.append(Finding(f"port {number}", "good", "It greets. Whether the firewall lets others in is seen from outside."))
    return found


def _is_public(endpoints: str) -> bool:
    """Whether it is on the port that others come to: by itself, or through systemd."""
    return any(each.startswith("systemd:") or each in ("tcp:25", "tcp:587", "tcp:2587") for each in endpoints.split())
