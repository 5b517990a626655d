"""Identity providers: OpenID Connect (Google, and accounts' own), and OAuth 2 with an API (GitHub). Only the protocols; the pages are in
federation.py and single_sign_on.py.

All use an authorization code with PKCE (7636) and a client secret. The result is an issuer and a subject, with an email address only if the
provider has verified it.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any, Protocol
from urllib.parse import quote_plus, urlencode, urlsplit

import attrs
from joserfc import jwk, jwt
from joserfc.errors import JoseError

from mailsvc.domains.names import typed_address
from mailsvc.net.fetch import Fetcher, FetchError, Reply
from mailsvc.net.urls import BadUrl, Rules
from mailsvc.settings.identity_providers import SignIn, secret_of
from mailsvc.store.people.identities import Identity

SECONDS = 10.0  # per request
LONGEST = 256 * 1024
HOUR = 3600.0
SOON = 60.0  # shortest time between fetches of keys because of an unknown one
SKEW = 60  # seconds of clock difference
SIGNED_WITH = ["RS256", "ES256", "PS256", "EdDSA"]
MOST_KEYS = 50  # that are read; each takes a fraction of a millisecond
RSA_BITS = 2048  # at least (7518 §3.3)
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class ProviderError(Exception):
    """The provider did not identify the user. The message is for them, `detail` for the log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


@attrs.frozen
class Claims:
    """The identity at the provider. `email`: verified, or empty."""

    identity: Identity
    email: str
    name: str
    signed_in_at: float | None = None  # time of the sign-in at the provider, if it reports it


@attrs.frozen
class AuthorizationRequest:
    """One sign-in: the callback URL and its own secrets.

    `again`: the user is confirming their identity, so an old session at the provider is not enough. `hint`: the address they entered.
    """

    back: str
    state: str
    nonce: str
    verifier: str = attrs.field(repr=False)
    again: bool = False
    hint: str = ""

    @property
    def challenge(self) -> str:
        return urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")  # 7636 §4.2


class Provider(Protocol):
    """`name` is used in settings and URLs, `title` is shown to people.

    `reports_sign_in_time`: whether it can prove that the user signed in there just now.
    """

    name: str
    title: str
    reports_sign_in_time: bool

    async def page(self, request: AuthorizationRequest) -> str:
        """The URL to redirect the browser to."""

    async def identify(self, request: AuthorizationRequest, code: str, issuer: str) -> Claims:
        """The identity for `code`. `issuer`: the `iss` of the callback, or empty. Raises ProviderError."""


@attrs.define(eq=False)
class ProviderClient:
    """HTTP requests to one provider, limited in time and size."""

    fetcher: Fetcher
    title: str

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Any:
        return self._read(url, await self._fetch("GET", url, headers or {}, None))

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """An OAuth response. An error counts whatever its status (6749 §5.2; GitHub uses 200)."""
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json", **(headers or {})}
        reply = await self._fetch("POST", url, kind, urlencode(form).encode())
        answer = self._read(url, reply, whatever=True)
        if reply.status != 200 or not isinstance(answer, dict) or "error" in answer:
            error = answer.get("error") if isinstance(answer, dict) else None
            raise ProviderError(f"{self.title} rejected this sign-in. Try again.", f"{url}: {reply.status} {str(error)[:100]}")
        return answer

    async def _fetch(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        try:
            given = {"Accept": "application/json", "User-Agent": "mailsvc", **headers}
            return await self.fetcher.fetch(method, url, seconds=SECONDS, keep=LONGEST, headers=given, body=body)
        except FetchError as error:
            raise ProviderError(f"{self.title} isn’t responding. Try again in a moment.", f"{url}: {error}") from None

    def _read(self, url: str, reply: Reply, whatever: bool = False) -> Any:
        try:
            if reply.status == 200 or whatever:
                return _storable(json.loads(reply.body))
        except (ValueError, RecursionError):
            pass
        raise ProviderError(f"{self.title} sent an unexpected response. Try again in a moment.", f"{url}: {reply.status}")


def _storable(found: Any) -> Any:
    """What a provider sent as JSON, unless a text in it is none that the database takes. Raises ValueError."""
    text = json.dumps(found, ensure_ascii=False)
    text.encode()  # halves of characters
    if "\\u0000" in text:
        raise ValueError("a text has a NUL character")
    return found


def verified_by_google(claims: Mapping[str, Any]) -> bool:
    """Whether Google is the authority for the address: of Gmail, or of a Workspace domain."""
    gmail = str(claims.get("email", "")).lower().endswith("@gmail.com")
    return claims.get("email_verified") is True and (gmail or bool(claims.get("hd")))


@attrs.define(eq=False)
class OpenId:
    """OpenID Connect: endpoints from discovery, the identity from a signed ID token.

    `verified`: whether claims prove that the address is the user's. `check_url`: raises BadUrl for an endpoint that must not be used.
    `prompt`: what the provider is told to show (OpenID Connect Core §3.1.2.1).
    """

    name: str
    title: str
    issuer: str
    client: str
    secret: str = attrs.field(repr=False)
    web: ProviderClient
    clock: Callable[[], float]
    reports_sign_in_time: bool = True
    verified: Callable[[Mapping[str, Any]], bool] = verified_by_google
    check_url: Callable[[str], object] = str
    prompt: str = "select_account"
    _found: dict[str, Any] = attrs.field(factory=dict, init=False)
    _found_at: float = attrs.field(default=0.0, init=False)
    _keys: jwk.KeySet | None = attrs.field(default=None, init=False)
    _keys_at: float = attrs.field(default=0.0, init=False)

    async def page(self, request: AuthorizationRequest) -> str:
        found = await self.discovered()
        params = {
            "response_type": "code", "client_id": self.client, "redirect_uri": request.back, "scope": "openid email profile",
            "state": request.state, "nonce": request.nonce, "code_challenge": request.challenge, "code_challenge_method": "S256",
            "prompt": self.prompt, "login_hint": request.hint,
        }  # fmt: skip
        if request.again:  # OpenID Connect Core §3.1.2.1; Google says when only if the `claims` parameter asks for it (§5.5)
            params |= {"max_age": "0", "claims": '{"id_token":{"auth_time":{"essential":true}}}'}
            if "login" in (found.get("prompt_values_supported") or ()):
                params["prompt"] = "login"
        endpoint: str = found["authorization_endpoint"]
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode({name: value for name, value in params.items() if value})}"

    async def identify(self, request: AuthorizationRequest, code: str, issuer: str) -> Claims:
        found = await self.discovered()
        if issuer != self.issuer and (issuer or found.get("authorization_response_iss_parameter_supported") is True):  # 9207 §2.4
            raise ProviderError("The response came from a different provider. Try again.", f"iss {issuer[:100]!r}")
        answer = await self._exchanged(found, request, code)
        claims = await self._verified(str(answer.get("id_token", "")), request.nonce)
        if "email" not in claims and "userinfo_endpoint" in found:
            claims |= await self._user_info(found["userinfo_endpoint"], str(answer.get("access_token", "")), claims["sub"])
        email = typed_address(str(claims.get("email", "")))
        identity = Identity(self.issuer, str(claims["sub"]), self.name, email or str(claims.get("name", "")) or str(claims["sub"]))
        sure = email if self.verified(claims) else ""
        return Claims(identity, sure, str(claims.get("name", ""))[:100], self._signed_in_at(claims.get("auth_time")))

    async def _exchanged(self, found: Mapping[str, Any], request: AuthorizationRequest, code: str) -> dict[str, Any]:
        """The tokens for a code. The secret goes in the body only if the provider says that it takes it there (8414 §2)."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": request.back, "code_verifier": request.verifier}
        if "client_secret_post" in (found.get("token_endpoint_auth_methods_supported") or ()):
            return await self.web.post(found["token_endpoint"], form | {"client_id": self.client, "client_secret": self.secret})
        pair = f"{quote_plus(self.client)}:{quote_plus(self.secret)}"  # 6749 §2.3.1
        return await self.web.post(found["token_endpoint"], form, {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"})

    async def _user_info(self, url: str, token: str, subject: str) -> dict[str, Any]:
        """The address and name, which many providers give only there (OpenID Connect Core §5.4), if they are of the same user (§5.3.2)."""
        found = await self.web.get(url, {"Authorization": f"Bearer {token}"})
        if not isinstance(found, dict) or found.get("sub") != subject:
            raise ProviderError(f"The response from {self.title} couldn’t be verified. Try again.", "userinfo: it is about another user")
        return {name: found[name] for name in ("email", "email_verified", "name") if name in found}

    def _signed_in_at(self, auth_time: object) -> float | None:
        """The `auth_time` of an ID token, unless it is missing or in the future."""
        if not isinstance(auth_time, int | float) or isinstance(auth_time, bool) or not 0 <= auth_time <= self.clock() + SKEW:
            return None
        return min(float(auth_time), self.clock())

    async def _verified(self, token: str, nonce: str) -> dict[str, Any]:
        """The verified claims of an ID token issued to us for this sign-in (OpenID Connect Core §3.1.3.7)."""
        try:
            claims = await self._signed(token)
            expected = {"iss": self.issuer, "aud": self.client, "nonce": nonce}
            checks: dict[str, Any] = {name: {"essential": True} for name in ("sub", "exp", "iat")}
            checks |= {name: {"essential": True, "value": value} for name, value in expected.items()}
            jwt.JWTClaimsRegistry(now=lambda: int(self.clock()), leeway=SKEW, **checks).validate(claims)
            others = claims["aud"] if isinstance(claims["aud"], list) else []
            if claims.get("azp", self.client) != self.client or (len(others) > 1 and "azp" not in claims):
                raise ValueError("issued to another client")
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProviderError(f"The response from {self.title} couldn’t be verified. Try again.", f"ID token: {error}") from None
        return claims

    async def _signed(self, token: str) -> dict[str, Any]:
        """The claims, if the signature is valid. For an unknown key, the keys are fetched again."""
        found = await self.discovered()
        for again in (False, True):
            if self._keys is None or (again and self.clock() - self._keys_at >= SOON) or self.clock() - self._keys_at >= HOUR:
                published = await self.web.get(found["jwks_uri"])
                self._keys, self._keys_at = usable_keys(published), self.clock()
            try:
                claims = dict(jwt.decode(token, self._keys, algorithms=SIGNED_WITH).claims)
            except (JoseError, ValueError):  # either, depending on whether the key is known
                if again:
                    raise
            else:
                return _storable(claims)  # type: ignore[no-any-return]
        raise AssertionError

    async def discovered(self) -> dict[str, Any]:
        """The discovery document. Raises ProviderError, also if an endpoint must not be used."""
        if not self._found or self.clock() - self._found_at >= HOUR:
            url = f"{self.issuer.removesuffix('/')}/.well-known/openid-configuration"
            found = await self.web.get(url)
            problem = self._problem(found)
            if problem is not None:
                raise ProviderError(f"{self.title} sent an unexpected response. Try again in a moment.", f"{url}: {problem}")
            self._found, self._found_at = found, self.clock()
        return self._found

    def _problem(self, found: object) -> str | None:
        """Why the discovery document cannot be used."""
        if not isinstance(found, dict):
            return "It is not a JSON object."
        if found.get("issuer") != self.issuer:
            return f"Its issuer is {str(found.get('issuer'))[:100]}."
        for name in (*ENDPOINTS, *(["userinfo_endpoint"] if "userinfo_endpoint" in found else [])):
            try:
                if not isinstance(found.get(name), str):
                    return f"It has no {name}."
                self.check_url(found[name])
            except BadUrl as error:
                return f"Its {name} {error}."
        return None


def usable_keys(published: Any) -> jwk.KeySet:
    """The published keys that can verify signatures. Others are ignored (7517 §5). Raises ValueError."""
    listed = published.get("keys") if isinstance(published, dict) else None
    keys = [key for key in map(_key, listed[:MOST_KEYS] if isinstance(listed, list) else []) if key is not None]
    if not keys:
        raise ValueError("the provider has no usable key")
    return jwk.KeySet(keys)


def _key(published: Any) -> Any:
    if not isinstance(published, dict) or published.get("use", "sig") != "sig" or published.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    try:
        key = jwk.import_key(published)
        small = isinstance(key, jwk.RSAKey) and key.public_key.key_size < RSA_BITS
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return None if small else key


@attrs.define(eq=False)
class GitHub:
    """OAuth 2, then two API requests. The numeric ID identifies a user; names may change.

    GitHub cannot require a new sign-in and does not report when the user signed in.
    """

    url: str
    api: str
    client: str
    secret: str = attrs.field(repr=False)
    web: ProviderClient
    name: str = "github"
    title: str = "GitHub"
    reports_sign_in_time: bool = False

    async def page(self, request: AuthorizationRequest) -> str:
        params = {
            "client_id": self.client, "redirect_uri": request.back, "scope": "user:email", "state": request.state, "allow_signup": "false",
            "code_challenge": request.challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        return f"{self.url}/login/oauth/authorize?{urlencode(params)}"

    async def identify(self, request: AuthorizationRequest, code: str, issuer: str) -> Claims:
        form = {
            "client_id": self.client, "client_secret": self.secret, "code": code,
            "redirect_uri": request.back, "code_verifier": request.verifier,
        }  # fmt: skip
        answer = await self.web.post(f"{self.url}/login/oauth/access_token", form)
        bearer = {"Authorization": f"Bearer {answer.get('access_token', '')}", "Accept": "application/vnd.github+json"}
        person = await self.web.get(f"{self.api}/user", bearer)
        emails = await self.web.get(f"{self.api}/user/emails", bearer)
        number = person.get("id") if isinstance(person, dict) else None
        if type(number) is not int or not isinstance(emails, list):
            raise ProviderError("GitHub sent an unexpected response. Try again in a moment.", "no id")
        sure = [typed_address(str(one.get("email", ""))) for one in emails if one.get("primary") is True and one.get("verified") is True]
        login = str(person.get("login") or number)
        return Claims(Identity(self.url, str(number), self.name, login), sure[0] if sure else "", str(person.get("name") or login)[:100])


def providers_of(settings: SignIn, fetcher: Fetcher, clock: Callable[[], float]) -> dict[str, Provider]:
    """The configured providers. The operator chooses them, so unlike customers' URLs they may use any address."""
    found: dict[str, Provider] = {}
    if settings.google_client is not None:
        web = _web(settings.google_name, fetcher, settings.google_issuer)
        secret = secret_of(settings.google_secret, "google_secret")
        found["google"] = OpenId("google", settings.google_name, settings.google_issuer, settings.google_client, secret, web, clock)
    if settings.github_client is not None:
        web = _web("GitHub", fetcher, settings.github_url)
        secret = secret_of(settings.github_secret, "github_secret")
        found["github"] = GitHub(settings.github_url, settings.github_api, settings.github_client, secret, web)
    return found


def _web(title: str, fetcher: Fetcher, url: str) -> ProviderClient:
    anywhere = (ip_network("0.0.0.0/0"), ip_network("::/0"))
    rules = Rules(ports=frozenset(), clear=urlsplit(url).scheme == "http", allowed=anywhere)
    return ProviderClient(Fetcher(fetcher.reactor, fetcher.resolver, rules, fetcher.trust), title)
