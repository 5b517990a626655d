"""The OpenID Connect providers of accounts. Unlike those of the operator, their URLs come from customers: only https, and only addresses
that customers' URLs may have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import attrs

from mailsvc.dashboard.signin.providers import OpenId, ProviderClient
from mailsvc.net import urls
from mailsvc.net.fetch import Fetcher
from mailsvc.net.urls import BadUrl
from mailsvc.store.people.single_sign_on import SingleSignOn

NAME = "single sign-on"
MOST = 100  # providers whose discovery document and keys are cached


@attrs.define(eq=False)
class AccountProviders:
    """`fetcher`: for URLs that customers give."""

    fetcher: Fetcher
    clock: Callable[[], float]
    _made: OrderedDict[tuple[object, ...], OpenId] = attrs.field(factory=OrderedDict, init=False, repr=False)

    def of(self, found: SingleSignOn) -> OpenId:
        """The provider of an account, with nothing cached after the account changes it."""
        key = (found.account_id, found.changed_at, found.issuer, found.client, found.secret, found.vouches)
        provider = self._made.pop(key, None) or self._new(found.issuer, found.client, found.secret, found.vouches)
        self._made[key] = provider
        while len(self._made) > MOST:
            self._made.popitem(last=False)
        return provider

    async def check(self, issuer: str) -> None:
        """Read the discovery document of an issuer. Raises ProviderError."""
        await self._new(issuer, "", "", False).discovered()

    def check_url(self, url: str) -> None:
        """Raises BadUrl if a provider must not have this URL. Only a provider on this machine, in development, can have http."""
        target = urls.read(url, self.fetcher.rules)
        if not target.secure and not _loopback(target.host):
            raise BadUrl("must begin with https://")
        if "#" in url:
            raise BadUrl("must not have a fragment")

    def _new(self, issuer: str, client: str, secret: str, vouches: bool) -> OpenId:
        title = urlsplit(issuer).hostname or issuer

        def verified(claims: Mapping[str, Any]) -> bool:
            return bool(claims.get("email_verified", vouches) is True)

        return OpenId(
            NAME, title, issuer, client, secret, ProviderClient(self.fetcher, title), self.clock,
            verified=verified, check_url=self.check_url, prompt="",
        )  # fmt: skip


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
