"""Settings of what customers set up: sending domains and webhooks. Their place in the settings file: schema."""

from __future__ import annotations

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


@attrs.frozen
class Webhooks:
    """Webhooks. The settings are passed to webhooks/sender under the same names."""

    endpoints: int = setting(100, "Maximum number of endpoints for each account.", check=checks.between(1, 1000))
    connections: int = setting(200, "Maximum number of open connections.", check=checks.between(1, 20000))
    per_endpoint: int = setting(5, "Connections to one endpoint. A failing endpoint gets a single one.", check=checks.between(1, 1000))
    per_endpoint_most: int = setting(50, "Maximum for an endpoint that responds well and has a backlog.", check=checks.between(1, 1000))
    per_host: int = setting(50, "Maximum number of connections to one host and port.", check=checks.between(1, 1000))
    per_account: int = setting(50, "Maximum number of connections to the endpoints of one account.", check=checks.between(1, 1000))
    timeout: float = setting(15.0, "Timeout in seconds for an attempt.", check=checks.between(1, 60))
    schedule: tuple[float, ...] = setting(
        (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 36000.0), "Seconds to wait before each retry.", check=checks.schedule
    )
    warn_after: float = setting(
        1800.0, "Seconds without a successful attempt after which the account is notified.", check=checks.at_least(1)
    )
    disable_after: float = setting(
        432000.0, "Seconds without a successful attempt after which an endpoint is disabled (5 days).", check=checks.at_least(1)
    )


@attrs.frozen
class Domains:
    """Sending domains."""

    allow_trust: bool = setting(False, "Whether `mailsvc domain trust` may verify a domain without DNS records.")
    spf_include: str | None = setting(
        None,
        "A name whose SPF record lists all sending addresses, if they are not just those of the region's host.",
        check=checks.host,
        example="spf.example.com",
    )
    dkim_zone: str | None = setting(
        None, "A DNS zone of yours that serves the DKIM keys of new domains (`mailsvc domain zone`). Customers add CNAMEs to it.",
        check=checks.host, example="dkim.example.com",
    )  # fmt: skip
    rotate_days: int = setting(
        180, "Days after which a DKIM key is rotated. 0: only with `mailsvc domain rotate`.", check=checks.between(0, 3650)
    )
    nameserver_port: int = setting(53, "The port of customers' nameservers.", check=checks.between(1, 65535))
    per_account: int = setting(1000, "Maximum number of domains for each account.", check=checks.between(1, 1_000_000))
    unverified: int = setting(100, "Maximum number of unverified domains for each account.", check=checks.between(1, 1_000_000))
    adds_per_hour: int = setting(100, "Maximum number of domains an account can add per hour.", check=checks.between(1, 1_000_000))
