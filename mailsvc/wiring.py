"""Converts settings to the types that delivery, the relay, the API and the fetcher take, and checks what needs those types."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import attrs
from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mailsvc.delivery import shaping
from mailsvc.delivery.connection import sources
from mailsvc.delivery.connection.sources import Sources
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.shaping import Shaping
from mailsvc.http import gate
from mailsvc.insights.reputation import Reputation
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.net import address_guard, urls
from mailsvc.net.dns import Resolver, configured
from mailsvc.relay.null_mx import NullMx
from mailsvc.relay.trusted_networks import TrustedNetworks
from mailsvc.settings import reader
from mailsvc.settings import schema as settings_
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.smtp.client.client import Timeouts
from mailsvc.smtp.server import session
from mailsvc.smtp.server.certificates import CERTBOT, Certificates, self_signed
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.postgres.pool import Pool

log = Logger()


def delivery_limits(delivery: settings_.Delivery) -> DeliveryLimits:
    """Most settings have the same name in DeliveryLimits."""
    same = {field.name: getattr(delivery, field.name) for field in attrs.fields(DeliveryLimits) if hasattr(delivery, field.name)}
    networks("delivery.allowed_networks", delivery.allowed_networks)
    return DeliveryLimits(
        **same,
        allow_addresses=delivery.allowed_networks,
        own_names=tuple(filter(None, (delivery.ehlo_name, *(source.ehlo for source in source_addresses(delivery).all)))),
        retry_after=delivery.retry,
        retry_every=delivery.retry[-1],
    )


def provider_rules(path: Path | None) -> Shaping:
    """The rules of the file, or the built-in ones."""
    if path is None:
        return shaping.read(tomllib.loads((resources.files("mailsvc.delivery") / "shaping.toml").read_text("utf-8")))
    try:
        return shaping.read(reader.read(path))
    except SettingsError as error:
        raise SettingsError(f"The setting delivery.shaping: {error}") from None
    except shaping.BadRules as error:
        raise SettingsError(f"The file {path} (delivery.shaping) is not valid. {error}") from None


def source_addresses(delivery: settings_.Delivery) -> Sources:
    """The addresses that mail is sent from."""
    if delivery.dane and not all(ip_address(server.host).is_loopback for server in configured(delivery.nameservers)):
        raise SettingsError("The setting delivery.dane needs a validating resolver on this machine; see delivery.nameservers.")
    try:
        return Sources(sources.parse(delivery.sources))
    except ValueError as error:
        raise SettingsError(f"The setting delivery.sources has {error}.") from None


def reputation(settings: Settings, pool: Pool, clock: Any) -> Reputation:
    """Looks up our reputation. With a smarthost, receivers don't see our servers, so none are looked up."""
    delivery, pages = settings.delivery, settings.dashboard
    resolver = Resolver(clock, delivery.nameservers, seconds=delivery.dns_seconds, size=2000, concurrent=20)
    own: list[tuple[str | None, str]] = [(each.address, each.ehlo) for each in source_addresses(delivery).all]
    servers = [] if "*" in delivery.routes else own or [(None, delivery.ehlo_name or "localhost")]
    return Reputation(resolver, Rollups(pool), servers, pages.block_lists, pages.domain_lists, clock)


def fetch_rules(fetch: settings_.Fetch) -> urls.Rules:
    """Which URLs from customers are allowed."""
    allowed = networks("fetch.allowed_networks", fetch.allowed_networks)
    return urls.Rules(frozenset(fetch.ports), fetch.allow_http, allowed, networks("fetch.denied_networks", fetch.denied_networks))


def smtp_timeouts(delivery: settings_.Delivery) -> Timeouts:
    greeting, reply = delivery.greeting_seconds, delivery.reply_seconds
    data, block, dot = delivery.data_seconds, delivery.block_seconds, delivery.final_seconds
    return Timeouts(greeting=greeting, ehlo=greeting, mail=reply, rcpt=reply, data=data, block=block, dot=dot)


def certificates(smtp: settings_.Smtp, host: str, seconds: Callable[[], float]) -> Certificates:
    """The certificate of the SMTP ports. Raises SettingsError."""
    if smtp.self_signed is not None:
        pair = self_signed(smtp.self_signed, host)
    elif smtp.certbot is not None:
        pair = (smtp.certbot / CERTBOT[0], smtp.certbot / CERTBOT[1])
    else:
        assert smtp.certificate is not None and smtp.key is not None
        pair = (smtp.certificate, smtp.key)
    try:
        return Certificates(*pair, seconds)
    except (OSError, ValueError, SSL.Error) as error:
        raise SettingsError(f"The certificate {pair[0]} cannot be used with the key {pair[1]}: {error}.") from None


def http_limits(http: settings_.Http) -> gate.Limits:
    """The limits of API and dashboard clients."""
    return gate.Limits(
        body=http.body_limit,
        idle=http.idle_seconds,
        connections=http.connections,
        connections_per_address=http.connections_per_address,
    )


def smtp_limits(settings: Settings) -> session.Limits:
    """The limits of an SMTP session."""
    smtp = settings.smtp
    return session.Limits(
        size=settings.limits.message, recipients=smtp.recipients, errors=smtp.errors, idle=smtp.idle_seconds, rate=smtp.slowest,
        unauthenticated_seconds=smtp.unauthenticated_seconds, unauthenticated_bytes=smtp.unauthenticated_bytes, tarpit=smtp.tarpit,
    )  # fmt: skip


def postmaster(smtp: settings_.Smtp) -> tuple[Mailbox, str] | None:
    """The operator's address, and the sending domain that forwards mail to it."""
    if smtp.postmaster is None or smtp.postmaster_domain is None:
        return None
    try:
        return parse_mailbox(smtp.postmaster), smtp.postmaster_domain
    except AddressError as error:
        raise SettingsError(f"The setting smtp.postmaster is not a valid address: {error}") from None


def null_mx(settings: Settings, resolver: Resolver, clock: IReactorTime) -> NullMx:
    """Domains with a route in delivery.routes are not looked up."""
    fixed = {domain.lower().rstrip(".") for domain in settings.delivery.routes}
    return NullMx(resolver, clock, settings.smtp.null_mx, lambda domain: "*" in fixed or domain in fixed)


def trusted_networks(smtp: settings_.Smtp) -> TrustedNetworks:
    """The networks whose clients need neither TLS nor login. They are logged at every start."""
    balancers = networks("smtp.trusted_proxies", smtp.trusted_proxies)
    for text, key in smtp.trusted_networks.items():
        network = ip_network(text)
        if any(network.version == each.version and network.subnet_of(each) for each in balancers):
            raise SettingsError(
                f"The setting smtp.trusted_networks has {text}, inside smtp.trusted_proxies: "
                "all clients of the load balancer would be trusted."
            )
        log.info("Clients in {network} can send without TLS and login, with the API key {key}", network=text, key=key)
    return TrustedNetworks.of(smtp.trusted_networks, balancers)


def networks(where: str, texts: Sequence[str]) -> Any:
    """Parses the networks in the setting `where`. Raises SettingsError."""
    try:
        return address_guard.networks(texts)
    except ValueError as error:
        raise SettingsError(f"The setting {where} is a list; expected addresses or networks: {error}.") from None
