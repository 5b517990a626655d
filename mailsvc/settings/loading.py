"""Loads the settings from a file and the environment, and checks those that depend on each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted.logger import Logger

from mailsvc.settings import cells, checks, reader, regions
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings, Smtp

log = Logger()

MOVED = {"http.log_days": "retention.requests", "smtp.receipts": "retention.receipts"}  # refused: they meant something else
RENAMED = {  # accepted with a warning until the next release
    "database.witness": "database.restore_marker",
    "smtp.stranger_seconds": "smtp.unauthenticated_seconds",
    "smtp.stranger_octets": "smtp.unauthenticated_bytes",
}


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Reads the settings from a file and the environment. Raises SettingsError."""
    return check(reader.read(path), environ)


def load_cells(path: Path, chosen: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, Settings]:
    """The settings of each of these cells; if none is given, of all that have settings of their own. Raises SettingsError."""
    given = reader.read(path)
    found = {cell: _load_cell(given, cell, environ) for cell in chosen or cells.names(given)}
    if not found:
        raise SettingsError("No cell has settings of its own; expected tables such as [cells.us_1].")
    cells.refuse_shared(found)
    return found


def _load_cell(given: Mapping[str, Any], cell: str, environ: Mapping[str, str]) -> Settings:
    if (wrong := checks.cell(cell)) is not None:
        raise SettingsError(f"The cell {cell!r} has a wrong name; {wrong}.")
    try:
        found = check(given, {**environ, cells.CELL: cell})
    except SettingsError as error:
        raise SettingsError(f"For the cell {cell}: {error}") from None
    if found.database.url is None:
        raise SettingsError("The setting database.url is missing; cells need one that names nodes of a Citus cluster.")
    return found


def former_names(path: Path, environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Renamed settings that a file or the environment still has by their former names, each with the current one."""
    given, hosts = reader.read(path), reader.variable("domains", "hosts")
    found = reader.former_names(given, environ, RENAMED)
    if "hosts" in given.get("domains", {}):
        found.append(("domains.hosts", "regions.NAME.host"))
    return [*found, *([(hosts, "regions.NAME.host")] if hosts in environ else [])]


def check(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a file that has been parsed, or is yet to be written. Raises SettingsError."""
    given, environ = _with_regions(cells.applied(given, environ), environ)
    settings = reader.build(Settings, given, environ, MOVED, RENAMED)
    regions.check(settings)
    settings = regions.applied(settings)
    _check_together(settings)
    return settings


def _with_regions(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Replaces the former setting domains.hosts by the host of each region."""
    name, domains = reader.variable("domains", "hosts"), given.get("domains")
    if name in environ:
        hosts = reader.from_text(environ[name], Mapping[str, str], name)
    elif isinstance(domains, Mapping) and "hosts" in domains:
        hosts = domains["hosts"]
    else:
        return given, environ
    if not isinstance(hosts, Mapping) or (hosts and "regions" in given):
        raise SettingsError("The setting domains.hosts has been replaced by regions.NAME.host; remove it.")
    log.warn("The setting domains.hosts has been replaced by regions.NAME.host; change it before the next release.")
    if isinstance(domains, Mapping):
        given = {**given, "domains": {key: value for key, value in domains.items() if key != "hosts"}}
    if hosts:
        given = {**given, "regions": {region: {"host": host} for region, host in hosts.items()}}
    return given, {key: value for key, value in environ.items() if key != name}


def _check_together(settings: Settings) -> None:
    """Checks that involve more than one setting."""
    database, delivery = settings.database, settings.delivery
    if (database.url is None) == (database.embedded is None):
        given = "both are set" if database.url else "neither is set"
        raise SettingsError(f"Set exactly one of database.url and database.embedded; {given}.")
    if settings.base_url is None and "http" in settings.roles:
        raise SettingsError("The setting base_url is missing; expected the public URL of the API, such as https://api.example.com.")
    if "http" in settings.roles and not settings.http.listen:
        raise SettingsError("The setting http.listen is empty; the role http needs at least one endpoint.")
    if settings.metrics.token is None and any(not text.startswith("unix:") for text in settings.metrics.listen):
        raise SettingsError("The setting metrics.token is missing; it is required for a TCP endpoint in metrics.listen.")
    if delivery.ehlo_name is None and {"delivery", "smtp"} & set(settings.roles):
        raise SettingsError("The setting delivery.ehlo_name is missing; expected this machine's public host name, such as out.example.com.")
    if "smtp" in settings.roles and settings.smtp.listen:
        _check_certificate(settings.smtp)
    if (settings.smtp.postmaster is None) != (settings.smtp.postmaster_domain is None):
        raise SettingsError("Set smtp.postmaster and smtp.postmaster_domain together; one of them is missing.")
    _check_dashboard(settings)
    _check_spool(settings)
    if not delivery.connections_initial <= delivery.connections_max <= delivery.connections:
        raise SettingsError("Expected delivery.connections_initial ≤ delivery.connections_max ≤ delivery.connections.")
    if settings.development.dev_file is not None and not settings.domains.allow_trust:
        raise SettingsError("The setting development.dev_file needs domains.allow_trust = true.")
    if database.url is not None and (wrong := checks.database_url(database.url)) is not None:
        raise SettingsError(f"The setting database.url is not valid; {wrong}.")


def _check_spool(settings: Settings) -> None:
    """A client gets half of the space that its kind has (runtime/budget). If it needs more, it is told to come back later, forever."""
    given = settings.http.spool
    for name, size, times in (
        ("http.body_limit", settings.http.body_limit, 4),
        ("audience.import_size", settings.audience.import_size, 4),
        ("limits.message", settings.limits.message, 8),
    ):
        if given < times * size:
            raise SettingsError(f"The setting http.spool is {given}; expected at least {times * size}, because of {name}.")


def _check_dashboard(settings: Settings) -> None:
    sender, tests = settings.sender, settings.dashboard.test_sender
    providers = settings.sign_in.google_client, settings.sign_in.github_client
    if settings.dashboard.sign_up and sender is None and providers == (None, None):
        raise SettingsError(
            "The setting dashboard.sign_up needs the setting sender, with which people confirm their addresses, or a provider in sign_in."
        )
    if tests is None:
        return
    if sender is None:
        raise SettingsError("The setting dashboard.test_sender needs the setting sender, with which members confirm their addresses.")
    domain = tests.rpartition("@")[2].lower()
    if domain in (sender.rpartition("@")[2].rstrip(">").lower(), (settings.smtp.postmaster_domain or "").lower()):
        raise SettingsError(f"The setting dashboard.test_sender needs a domain of its own; {domain} is used by another setting.")


def _check_certificate(smtp: Smtp) -> None:
    if (smtp.certificate is None) != (smtp.key is None):
        raise SettingsError("Set smtp.certificate and smtp.key together; one of them is missing.")
    given = [name for name in ("certificate", "certbot", "self_signed") if getattr(smtp, name) is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} are set" if given else "none is set"
        raise SettingsError(
            f"The SMTP ports need one certificate, but {found}. Set smtp.certificate and smtp.key, or smtp.certbot, or smtp.self_signed; "
            "or disable the ports with smtp.listen = {}."
        )
