"""What the settings of the way out mean to it: its terms, its addresses, its rules for providers. A SettingsError names what is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs

from mailsvc import configfile, guard
from mailsvc import settings as settings_
from mailsvc.configfile import SettingsError
from mailsvc.delivery import shaping, sources
from mailsvc.delivery.shaping import Shaping
from mailsvc.delivery.sources import Sources
from mailsvc.delivery.terms import DeliverySettings
from mailsvc.dns import configured
from mailsvc.smtp.client import Timeouts


def rules_for_providers(path: Path | None) -> Shaping:
    """Those of a file, else those that come with mailsvc."""
    if path is None:
        return shaping.read(tomllib.loads((resources.files("mailsvc") / "shaping.toml").read_text("utf-8")))
    try:
        return shaping.read(configfile.read(path))
    except SettingsError as error:
        raise SettingsError(f"The setting delivery.shaping names a file with rules for providers. {error}") from None
    except shaping.BadRules as error:
        raise SettingsError(f"The rules of delivery.shaping, {path}, are not usable. {error}") from None


def terms_of(delivery: settings_.Delivery) -> DeliverySettings:
    """The terms of delivery: most settings have the same name there."""
    same = {field.name: getattr(delivery, field.name) for field in attrs.fields(DeliverySettings) if hasattr(delivery, field.name)}
    networks("delivery.allowed_networks", delivery.allowed_networks)
    return DeliverySettings(
        **same,
        allow_addresses=delivery.allowed_networks,
        own_names=(delivery.ehlo_name,) if delivery.ehlo_name else (),
        retry_after=delivery.retry,
        retry_every=delivery.retry[-1],
    )


def sources_of(delivery: settings_.Delivery) -> Sources:
    """Our addresses."""
    if delivery.dane and not all(ip_address(server.host).is_loopback for server in configured(delivery.nameservers)):
        raise SettingsError("The setting delivery.dane needs a resolver on this machine that validates; see delivery.nameservers.")
    try:
        return Sources(sources.parse(delivery.sources))
    except ValueError as error:
        raise SettingsError(f"The setting delivery.sources has {error}.") from None


def timeouts_of(delivery: settings_.Delivery) -> Timeouts:
    greeting, reply = delivery.greeting_seconds, delivery.reply_seconds
    data, block, dot = delivery.data_seconds, delivery.block_seconds, delivery.final_seconds
    return Timeouts(greeting=greeting, ehlo=greeting, mail=reply, rcpt=reply, data=data, block=block, dot=dot)


def networks(where: str, texts: Sequence[str]) -> Any:
    try:
        return guard.networks(texts)
    except ValueError as error:
        raise SettingsError(f"The setting {where} is a list; expected addresses or networks: {error}.") from None
