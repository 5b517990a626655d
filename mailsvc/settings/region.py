"""Settings of a region. Their place in the settings file: schema. What follows from them: regions."""

from __future__ import annotations

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


@attrs.frozen
class Region:
    """A region."""

    host: str | None = setting(
        None,
        "The host that receives bounces and whose addresses send. Customers' MX records name it. Required.",
        check=checks.host,
        example="out.eu.example.com",
    )
    ehlo_name: str | None = setting(
        None,
        "The name sent in EHLO by processes of the region without delivery.ehlo_name. Default: host.",
        check=checks.host,
        example="out.eu.example.com",
    )
    sources: tuple[str, ...] = setting((), "The source addresses of processes of the region without delivery.sources.")
    spf_include: str | None = setting(
        None,
        "A name whose SPF record lists the addresses that send. Default: domains.spf_include.",
        check=checks.host,
        example="spf.eu.example.com",
    )
    api: str | None = setting(
        None,
        "The URL of the API in this region, shown to customers. Every region's API takes every account's requests. Default: base_url.",
        check=checks.base_url,
        example="https://api.eu.example.com",
    )
    smtp: str | None = setting(
        None,
        "The host of the SMTP ports in this region, shown to customers. Default: host.",
        check=checks.host,
        example="smtp.eu.example.com",
    )
