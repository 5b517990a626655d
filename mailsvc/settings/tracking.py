"""The settings of open and click tracking."""

from __future__ import annotations

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


@attrs.frozen
class Tracking:
    """Open and click tracking."""

    host: str | None = setting(
        None,
        "The host name of tracked links of domains without a tracking subdomain of their own. If not set, that of base_url.",
        check=checks.host, example="links.example.com",
    )  # fmt: skip
    authority: str = setting(
        "letsencrypt.org",
        "The certificate authority of tracking hosts, as CAA records call it. Domains are advised to allow it.",
        check=checks.host,
    )
    link_days: int = setting(365, "Days for which a tracked link leads to its target.", check=checks.between(1, 3650))
    untracked_domains: tuple[str, ...] = setting(
        (), "Recipient domains that are never tracked, nor are their subdomains. An email to several people is tracked only if all can be."
    )
    truncate_addresses: bool = setting(
        True, "Whether to store only the network of a reader's IP address: the first 24 bits, of IPv6 the first 48."
    )
    pending: int = setting(
        20_000, "Opens and clicks that wait in memory to be stored. Beyond that, they are not recorded.", check=checks.at_least(100)
    )
