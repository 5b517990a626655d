"""The tracking settings of a sending domain: what they can be, and why nothing is tracked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mailsvc.domains import names
from mailsvc.store.domains.values import Domain

SUBDOMAINS_MAX = 10  # of a domain, former ones included
LABEL = "must have 1 to 63 letters, digits and hyphens, start with a letter and not end with a hyphen"
NO_HOST = "this server does not track opens and clicks"


def fault(label: str, return_path: str, present: Sequence[str] = ()) -> str | None:
    """Why a label, in lower case, cannot be the tracking subdomain: the end of a sentence that begins with the field."""
    if not names.RETURN_PATH.fullmatch(label):
        return LABEL
    if label in ("www", return_path):
        return f"must not be `{label}`, which is in use. Choose another label, such as `links`"
    if label not in present and len(present) >= SUBDOMAINS_MAX:
        return f"cannot be changed: a domain can have at most {SUBDOMAINS_MAX} of them"
    return None


def inactive(domain: Domain, own: str | None) -> str | None:
    """Why nothing is tracked although it is switched on, as a sentence. `own`: the host of links of domains without a subdomain."""
    if not (domain.open_tracking or domain.click_tracking) or domain.tracking_host(own) is not None:
        return None
    what = " and ".join(word for word, on in (("Opens", domain.open_tracking), ("clicks", domain.click_tracking)) if on).capitalize()
    if domain.untracked:
        return f"{what} are not tracked: the account wants no tracking (Settings, Data)."
    if not domain.tracking_subdomains:
        return f"{what} are not tracked: {NO_HOST}."
    return f"{what} are not tracked yet, because the CNAME record of {domain.tracking_hosts[-1]} is not verified."


def awaits_record(domain: Domain) -> bool:
    """Whether a DNS record is all that `inactive` tracking lacks."""
    return not domain.untracked and bool(domain.tracking_subdomains)
