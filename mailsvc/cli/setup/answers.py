"""What `mailsvc setup` has to know: given as options, taken from the settings file of an earlier run, or asked for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs
import click

from mailsvc.accounts.onboarding import Refused, address, domain_name
from mailsvc.settings import checks, reader
from mailsvc.settings.reader import SettingsError

DATABASE = "postgresql://mailsvc@/mailsvc?host=/run/postgresql"
REGION = "us-east-1"
_FROM_ENVIRONMENT = "MAILSVC_DATABASE__URL"


@attrs.frozen
class Answers:
    """`database` is None if it is set in the environment, and is then not written to the file."""

    host: str
    url: str
    database: str | None
    operator: str
    domain: str
    sender: str
    sources: tuple[str, ...]
    region: str


def collect(given: Mapping[str, Any], config: Path, *, asking: bool) -> Answers:
    """The answers. Raises a UsageError that names the option of an answer that is missing or wrong."""
    former = _former(config)
    ask = _asker(given, asking)
    host = ask("host", "Public host name of this server", former.get("host") or _full_name(), domain_name)
    operator = ask("operator", "Your email address, for problems and mail to postmaster@ and abuse@", former.get("operator"), address)
    domain = ask("domain", "Your own domain, for mail from the service itself", former.get("domain") or _parent(host), domain_name)
    in_environment = _FROM_ENVIRONMENT in os.environ and given["database"] is None
    database = None if in_environment else ask("database", "Database URL", former.get("database") or DATABASE, _database)
    return Answers(
        host,
        ask("url", "URL of the API and the dashboard", former.get("url") or f"https://{host}", _checked(checks.base_url)),
        database,
        operator,
        domain,
        ask("sender", "Sender of mail from the service itself", former.get("sender") or f"mailsvc <no-reply@{domain}>", _sender(domain)),
        tuple(map(_source(host), given["sources"])) or tuple(former.get("sources", ())),
        ask("region", "Name of the region", former.get("region") or REGION, _checked(checks.host)),
    )


def _asker(given: Mapping[str, Any], asking: bool) -> Callable[[str, str, str | None, Callable[[str], str]], str]:
    def ask(name: str, question: str, default: str | None, check: Callable[[str], str]) -> str:
        if given[name] is not None:
            return _valid(name, given[name], check)
        while asking:
            try:
                return check(_typed(question, default))
            except (Refused, ValueError) as wrong:
                click.echo(f"{wrong}", err=True)
        if default is None:
            raise click.UsageError(f"--{name} is needed with --yes.")
        return _valid(name, default, check)

    return ask


def _typed(question: str, default: str | None) -> str:
    """Asks once. Raises a ValueError if nothing is entered and there is no default."""
    text: str = click.prompt(question, default=default or "", show_default=default is not None, err=True)
    if default is None and not text.strip():
        raise ValueError("Enter an answer: there is no default.")
    return text


def _valid(name: str, value: str, check: Callable[[str], str]) -> str:
    try:
        return check(value)
    except (Refused, ValueError) as wrong:
        raise click.UsageError(f"--{name}: {wrong}") from None


def _former(config: Path) -> dict[str, Any]:
    """What the settings file says now, if there is one."""
    if not config.exists():
        return {}
    try:
        given = reader.read(config)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    smtp, delivery = given.get("smtp", {}), given.get("delivery", {})
    return {
        "host": delivery.get("ehlo_name"),
        "url": given.get("base_url"),
        "database": given.get("database", {}).get("url"),
        "operator": smtp.get("postmaster"),
        "domain": smtp.get("postmaster_domain"),
        "sender": given.get("sender"),
        "sources": delivery.get("sources", ()),
        "region": given.get("region"),
    }


def _full_name() -> str | None:
    name = socket.getfqdn()
    return name if "." in name and not name.endswith(".localdomain") and name != "localhost" else None


def _parent(host: str) -> str | None:
    """example.com for out.example.com."""
    parent = host.partition(".")[2]
    return parent if "." in parent else None


def _database(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"Expected a URL such as {DATABASE}.")
    return text


def _checked(check: Callable[[str], str | None]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if wrong := check(text):
            raise ValueError(f"{wrong[0].upper()}{wrong[1:]}.")
        return text

    return checked


def _sender(domain: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        _checked(checks.sender)(text)
        if domain_name(text.rpartition("@")[2].rstrip(">")) != domain:
            raise ValueError(f"Expected an address of {domain}.")
        return text

    return checked


def _source(host: str) -> Callable[[str], str]:
    """A source address, with the host name unless it has one of its own."""

    def checked(text: str) -> str:
        first, *rest = text.split() or [""]
        try:
            ip_address(first)
        except ValueError:
            raise click.UsageError(f"--source: {text!r} does not begin with an IP address.") from None
        return " ".join([first, *(rest or [host])])

    return checked
