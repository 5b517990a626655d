"""A fake of the services that people sign in at: it speaks OpenID Connect and GitHub's OAuth 2 over loopback, and believes whoever asks.

It is as strict as the real ones where that shows our own mistakes: redirect URIs, PKCE, client secrets, codes that work once.
`lie` makes it answer wrongly, to see that we notice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import attrs
from joserfc import jwk, jwt

CLIENT, SECRET = "a-client-id", "a-client-secret"


@attrs.define
class Someone:
    """Who is signed in at the provider."""

    subject: str = "1111"
    email: str = "pat@gmail.com"
    email_verified: bool = True
    name: str = "Pat Example"
    hd: str | None = None


@attrs.define(eq=False)
class FakeProvider:
    person: Someone = attrs.field(factory=Someone)
    lie: Callable[[dict[str, Any]], dict[str, Any]] = attrs.field(default=lambda claims: claims)  # what it does to the ID token's claims
    signs_with: Any = attrs.field(factory=lambda: jwk.RSAKey.generate_key(2048, {"kid": "first", "use": "sig"}))
    publishes: list[Any] = attrs.field(factory=list)
    algorithm: str = "RS256"
    header: dict[str, Any] = attrs.field(factory=dict)  # what differs in the ID token's header
    sign: Callable[[dict[str, Any], dict[str, Any]], str] | None = None  # makes the ID token from header and claims, in another way
    tells_at_user_info: bool = False  # address and name are not in the ID token, but at the userinfo endpoint
    user_info: dict[str, Any] = attrs.field(factory=dict)  # what differs there
    discovery: dict[str, Any] = attrs.field(factory=dict)  # what differs in the discovery document
    denies: bool = False
    asks_again: bool = True  # whether `max_age=0` makes it ask for the password; the real one ignores it
    signed_in_at: int = 0  # when the person signed in there, if nothing made them do it again
    clock: Callable[[], float] = time.time
    requests: list[dict[str, str]] = attrs.field(factory=list)  # what browsers came with
    exchanged: list[dict[str, str]] = attrs.field(factory=list)  # what we came with
    _codes: dict[str, dict[str, str]] = attrs.field(factory=dict)
    _tokens: set[str] = attrs.field(factory=set)
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> FakeProvider:
        self.publishes = self.publishes or [self.signs_with]
        provider = self

        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                split = urlsplit(self.path)
                provider.get(self, split.path, {name: values[0] for name, values in parse_qs(split.query).items()})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.post(self, urlsplit(self.path).path, {name: values[0] for name, values in parse_qs(body).items()})

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the tests say what was wrong."""

            def answer(self, status: int, content: object = None, headers: Mapping[str, str] | None = None) -> None:
                body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                kind = "text/html" if isinstance(content, str) else "application/json"
                for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    # What it serves

    def get(self, request: Any, path: str, query: dict[str, str]) -> None:
        if path == "/.well-known/openid-configuration":
            found = {
                "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize", "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys", "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            }  # fmt: skip
            given = found | ({"userinfo_endpoint": f"{self.url}/userinfo"} if self.tells_at_user_info else {}) | self.discovery
            request.answer(200, {name: value for name, value in given.items() if value is not None})
        elif path == "/keys":
            request.answer(200, {"keys": [key.as_dict(private=False) for key in self.publishes]})
        elif path in ("/authorize", "/login/oauth/authorize"):
            self.requests.append(query)
            self._authorize(request, query)
        elif path == "/userinfo" and request.headers.get("Authorization", "").removeprefix("Bearer ") in self._tokens:
            request.answer(200, {"sub": self.person.subject, **self._about(), **self.user_info})
        elif path in ("/user", "/user/emails"):
            self._tell(request, path)
        else:
            request.answer(404, {})

    def _authorize(self, request: Any, query: dict[str, str]) -> None:
        """A page with a button: real ones ask too."""
        if query.get("client_id") != CLIENT or query.get("code_challenge_method") != "S256" or len(query.get("code_challenge", "")) != 43:
            request.answer(400, "<p>This request is not good.</p>")
            return
        request.answer(
            200,
            f'<html lang="en"><title>A fake provider</title><a href="{self.answer_to(query)}">Continue as {self.person.name}</a></html>',
        )

    def answer_to(self, query: Mapping[str, str]) -> str:
        """Where the browser is sent back to."""
        if self.denies:
            return f"{query['redirect_uri']}?{urlencode({'error': 'access_denied', 'state': query['state']})}"
        code = secrets.token_urlsafe(16)
        self._codes[code] = dict(query)
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def post(self, request: Any, path: str, form: dict[str, str]) -> None:
        given = request.headers.get("Authorization", "")
        if given.startswith("Basic ") and "client_secret" not in form and "client_id" not in form:
            client, _, secret = base64.b64decode(given.removeprefix("Basic ")).decode().partition(":")
            form = form | {"client_id": unquote_plus(client), "client_secret": unquote_plus(secret), "basic": "yes"}
        self.exchanged.append(form)
        wrong = self._wrong(form)
        if path == "/token":
            if wrong or form.get("grant_type") != "authorization_code":
                request.answer(400, {"error": wrong or "unsupported_grant_type"})
            else:
                token, id_token = secrets.token_urlsafe(16), self._id_token(self._codes.pop(form["code"]))
                self._tokens.add(token)
                request.answer(200, {"token_type": "Bearer", "access_token": token, "id_token": id_token})
        elif path == "/login/oauth/access_token":
            if wrong:
                request.answer(200, {"error": wrong})  # as GitHub does it
            else:
                del self._codes[form["code"]]
                token = secrets.token_urlsafe(16)
                self._tokens.add(token)
                request.answer(200, {"token_type": "bearer", "access_token": token, "scope": "user:email"})
        else:
            request.answer(404, {})

    def _wrong(self, form: dict[str, str]) -> str:
        request = self._codes.get(form.get("code", ""))
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET):
            return "invalid_client"
        if request is None or form.get("redirect_uri") != request["redirect_uri"]:
            return "invalid_grant"
        hashed = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
        return "" if hashed == request["code_challenge"] else "invalid_grant"

    def _id_token(self, request: dict[str, str]) -> str:
        now = int(self.clock())
        claims = {
            "iss": self.url, "aud": CLIENT, "sub": self.person.subject, "iat": now, "exp": now + 300, "nonce": request["nonce"],
        }  # fmt: skip
        claims |= {} if self.tells_at_user_info else self._about()
        if "auth_time" in request.get("claims", ""):
            claims["auth_time"] = now if request.get("max_age") == "0" and self.asks_again else self.signed_in_at
        if self.person.hd is not None:
            claims["hd"] = self.person.hd
        header = {"alg": self.algorithm, "kid": self.signs_with.kid, **self.header}
        if self.sign is not None:
            return self.sign(header, self.lie(claims))
        return jwt.encode(header, self.lie(claims), self.signs_with, algorithms=[self.algorithm])

    def _about(self) -> dict[str, Any]:
        return {"email": self.person.email, "email_verified": self.person.email_verified, "name": self.person.name}

    def _tell(self, request: Any, path: str) -> None:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self._tokens:
            request.answer(401, {"message": "Bad credentials"})
        elif path == "/user":
            request.answer(200, {"id": int(self.person.subject), "login": "pat", "name": self.person.name, "email": "shown@example.com"})
        else:
            other = {"email": "other@example.com", "primary": False, "verified": True}
            request.answer(200, [other, {"email": self.person.email, "primary": True, "verified": self.person.email_verified}])
