"""A minimal browser for a daemon: keeps cookies and form tokens."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from email import message_from_string
from email.policy import default
from typing import Any
from urllib.parse import urlencode

import attrs

from tests.end_to_end.rig import Daemon


@attrs.frozen
class Shown:
    """A response."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def location(self) -> str:
        return self.headers.get("location", "")


@attrs.define
class Visitor:
    daemon: Daemon
    cookies: dict[str, str] = attrs.field(factory=dict)
    token: str = ""

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Shown:
        return self._request("GET", path, None, headers or {})

    def post(
        self, path: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None, token: str | None = None
    ) -> Shown:
        fields = {"token": self.token if token is None else token, **(form or {})}
        return self._request("POST", path, urlencode(fields), {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})})

    def upload(self, path: str, file: bytes) -> Shown:
        """Send a form with a file."""
        parts = (("token", self.token.encode()), ("file", file))
        lines = [b'--x-x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value) for name, value in parts]
        return self._request("POST", path, b"".join([*lines, b"--x-x--\r\n"]), {"Content-Type": "multipart/form-data; boundary=x-x"})

    def sign_in(self, link: str) -> Shown:
        """Sign in with a link, and choose a password if there is none yet."""
        path = link[link.index("/dashboard") :]
        self.get(path)
        shown = self.post("/dashboard/sign-in/link", {"link": path.partition("=")[2]})
        if self.get("/dashboard").location != "/dashboard/sign-in/first":
            return shown
        self.get("/dashboard/sign-in/first")
        return self.post("/dashboard/sign-in/first", {"password": "seven quiet green lamps"})

    def with_password(self, email: str, password: str) -> Shown:
        self.get("/dashboard/sign-in")
        return self.post("/dashboard/sign-in", {"email": email, "password": password})

    def _request(self, method: str, path: str, body: str | bytes | None, headers: Mapping[str, str]) -> Shown:
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=30)
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request(method, path, body, {"User-Agent": "Firefox/130 Linux", **({"Cookie": cookies} if cookies else {}), **headers})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        for line in answer.headers.get_all("set-cookie") or []:
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        connection.close()
        found = re.search(r'name="token" value="([0-9a-f]+)"', text)
        if found:
            self.token = found[1]
        return Shown(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)


def mailed_link(daemon: Daemon, to: str, path: str) -> str:
    """The link to a page in the newest email to an address, once it has arrived."""
    links: list[str] = []

    def found(body: Any) -> bool:
        for mail in body["data"]:
            if mail["to"] == [to] and not links:
                message = message_from_string(daemon.call("GET", f"/sandbox/emails/{mail['id']}").body["raw"], policy=default)
                text = message.get_body(("plain",))
                links.extend(re.findall(rf"{path}\?link=[A-Za-z0-9_-]+", text.get_content() if text else "")[:1])
        return bool(links)

    daemon.until("/sandbox/emails", daemon.facts["api_key"], found)
    return links[0]
