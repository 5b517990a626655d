"""What follows from the settings of regions, for the process and for all regions. The settings themselves: region.

One file can serve the processes of all regions: only `region` differs, which the environment can set (MAILSVC_REGION).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.region import Region
from mailsvc.settings.schema import Settings


def check(settings: Settings) -> None:
    """Raises SettingsError if the regions are incomplete."""
    for name, region in settings.regions.items():
        if checks.host(name):
            raise SettingsError(f"The setting regions has {name!r}; expected the name of a region, such as eu-west-1.")
        if region.host is None:
            raise SettingsError(f"The setting regions.{name}.host is missing; expected the host that receives bounces.")
    if settings.regions and settings.region not in settings.regions:
        raise SettingsError(f"The setting region is {settings.region!r}; expected one of: {', '.join(settings.regions)}.")


def applied(settings: Settings) -> Settings:
    """The settings of this process: what delivery has no value for is taken from its region."""
    region = settings.regions.get(settings.region)
    if region is None:
        return settings
    given = settings.delivery
    delivery = attrs.evolve(given, ehlo_name=given.ehlo_name or region.ehlo_name or region.host, sources=given.sources or region.sources)
    return attrs.evolve(settings, delivery=delivery)


def all_regions(settings: Settings) -> Mapping[str, Region]:
    """All regions by name, with their defaults. Without the setting `regions`, the one of this process."""
    given = settings.regions or {settings.region: Region(host=settings.delivery.ehlo_name or "localhost")}
    return {name: _complete(region, settings) for name, region in given.items()}


def hosts(settings: Settings) -> Mapping[str, str]:
    """The host of each region that receives bounces."""
    return {name: region.host or "localhost" for name, region in all_regions(settings).items()}


def spf_includes(settings: Settings) -> Mapping[str, str]:
    """The name whose SPF record lists the addresses of a region, for regions that have one."""
    return {name: region.spf_include for name, region in all_regions(settings).items() if region.spf_include}


def own_names(settings: Settings) -> tuple[str, ...]:
    """The host names of this process in lower case, for which mail to postmaster is accepted (5321 §4.5.1)."""
    region = all_regions(settings)[settings.region]
    names = (settings.delivery.ehlo_name or "", region.host or "", region.smtp or "", *settings.smtp.names)
    return tuple(dict.fromkeys(name.lower() for name in names if name))  # 5321 §2.4: domains are case-insensitive


def service_names(settings: Settings) -> frozenset[str]:
    """All host names of the installation's regions, which customers cannot use as a domain."""
    found = all_regions(settings).values()
    names = [name for each in found for name in (each.host, each.smtp, each.spf_include, urlsplit(each.api or "").hostname)]
    return frozenset(name.lower() for name in names if name)


def _complete(region: Region, settings: Settings) -> Region:
    return attrs.evolve(
        region,
        spf_include=region.spf_include or settings.domains.spf_include,
        api=region.api or settings.base_url,
        smtp=region.smtp or region.host,
    )
