"""An email's pixel and link on real ports: recorded as events, also while the daemon stops; and certificates by a real Caddy."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from tests.end_to_end.rig import Daemon, eventually, free_port, rows
from tests.end_to_end.sink import Sink

OWN, CUSTOMERS = "track.mailsvc.example", "links"
TARGET = "https://example.com/a?b=1&c=2"
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/142.0 Safari/537.36"
CADDY = shutil.which("caddy")


def started(folder: Path, database: str, sink: Sink, **changes: Any) -> Daemon:
    routes = {"*": f"smtp://127.0.0.1:{sink.port}"}
    daemon = Daemon(folder, database, {"delivery": {"routes": routes}, "tracking": {"host": OWN}, **changes})
    daemon.start()
    return daemon


def domain_of(daemon: Daemon) -> dict[str, Any]:
    [domain] = daemon.call("GET", "/domains").body["data"]
    return dict(domain)


def sent(daemon: Daemon, sink: Sink, to: str) -> tuple[str, str, str]:
    """The ID of a tracked email, and the paths of its pixel and of its link."""
    email = {"from": f"Shop <hello@{daemon.facts['domain']}>", "to": to, "subject": "Hi"}
    html = f'<p><a href="{TARGET.replace("&", "&amp;")}">Look</a></p>'
    id_ = daemon.call("POST", "/emails", {**email, "html": html}).body["id"]
    [arrived] = eventually(lambda: [(mail,) for mail in list(sink.received) if to in mail.recipients])
    body = arrived[0].message.get_body(("html",))
    assert body is not None
    links = [urlsplit(unescape(link)) for link in re.findall(r'(?:src|href)="([^"]+)"', body.get_content())]
    assert {link.hostname for link in links} == {OWN}
    pixel, link = (next(each.path for each in links if each.path.startswith(start)) for start in ("/o/", "/c/"))
    daemon.until(f"/emails/{id_}", daemon.facts["api_key"], lambda body: body["last_event"] == "delivered")
    return id_, pixel, link


def get(daemon: Daemon, path: str, host: str = OWN, agent: str = BROWSER) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    connection.request("GET", path, headers={"Host": host, "User-Agent": agent})
    response = connection.getresponse()
    found = response.status, response.getheader("location"), response.read()
    connection.close()
    return found


def test_opens_and_clicks(tmp_path: Path, database: str, sink: Sink) -> None:
    daemon = started(tmp_path, database, sink)
    key, domain = daemon.facts["api_key"], domain_of(daemon)
    daemon.call("PATCH", f"/domains/{domain['id']}", {"open_tracking": True, "click_tracking": True})
    id_, pixel, link = sent(daemon, sink, "ada@example.net")
    assert get(daemon, pixel)[0] == 200
    daemon.until(f"/emails/{id_}", key, lambda body: body["last_event"] == "opened")
    assert get(daemon, link)[:2] == (302, TARGET)
    daemon.until(f"/emails/{id_}", key, lambda body: body["last_event"] == "clicked")
    log = daemon.until("/event-log", key, lambda body: any(event["type"] == "email.clicked" for event in body["data"]))
    [event] = [event for event in log["data"] if event["type"] == "email.clicked"]
    click = event["data"]["click"]
    assert (click["link"], click["userAgent"], click["ipAddress"]) == (TARGET, BROWSER, "127.0.0.0")
    totals = daemon.call("GET", "/emails/metrics?metrics=unique_opened,unique_clicked").body["totals"]
    assert totals == {"unique_opened": 1, "unique_clicked": 1}
    assert get(daemon, link, host="other.example.com")[0] == 404
    # also while the daemon stops
    assert get(daemon, link, agent="python-requests/2.32")[0] == 302
    assert daemon.stop() == 0
    assert rows(database, "SELECT data ->> 'machine' FROM events WHERE type = 'email.clicked' ORDER BY event_id DESC LIMIT 1") == [
        ("scanner",)
    ]
    assert link not in daemon.log and "/c/*" in daemon.log


def test_links_work_while_the_database_is_away(
    tmp_path: Path, database: str, postgres: str, administer: Callable[..., None], sink: Sink
) -> None:
    daemon = started(tmp_path, database, sink)
    key, domain = daemon.facts["api_key"], domain_of(daemon)
    daemon.call("PATCH", f"/domains/{domain['id']}", {"open_tracking": True, "click_tracking": True})
    id_, pixel, link = sent(daemon, sink, "eve@example.net")
    name = parse_dsn(database)["dbname"]
    ends = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    administer(postgres, f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false", ends)
    try:
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(database)
        assert get(daemon, link)[:2] == (302, TARGET)
        assert get(daemon, pixel)[0] == 200
    finally:
        administer(postgres, f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
    count = "SELECT type FROM events WHERE email_id = %s AND type IN ('email.opened', 'email.clicked') ORDER BY 1"
    found = eventually(lambda: found if len(found := rows(database, count, id_)) == 2 else [])
    assert found == [("email.clicked",), ("email.opened",)]
    daemon.until(f"/emails/{id_}", key, lambda body: body.get("last_event") == "opened")
    assert daemon.stop() == 0


@pytest.mark.skipif(CADDY is None, reason="needs Caddy")
def test_caddy_gets_certificates_for_verified_hosts_only(tmp_path: Path, database: str, sink: Sink) -> None:
    daemon = started(tmp_path, database, sink, http={"trusted_proxies": ["127.0.0.1"]})
    domain = domain_of(daemon)
    host = f"{CUSTOMERS}.{domain['name']}"
    daemon.call("PATCH", f"/domains/{domain['id']}", {"open_tracking": True, "click_tracking": True})
    id_, _, link = sent(daemon, sink, "bob@example.net")
    port = free_port()
    with caddy(tmp_path, port, daemon.port):
        assert over_tls(port, OWN, link, OWN)[:2] == (302, TARGET)
        with pytest.raises(ssl.SSLError):
            over_tls(port, host, link, host)
        verify(database, domain["id"], host)
        daemon.call("PATCH", f"/domains/{domain['id']}", {"tls": "enforced"})  # makes the processes read the domains again
        found = eventually(lambda: [found] if (found := served(port, host, link)) is not None else [])
        assert found[0][:2] == (302, TARGET)
        with pytest.raises(ssl.SSLError):
            over_tls(port, "other.example.com", link, host)
        assert over_tls(port, OWN, f"/tracking/ask?domain={OWN}", OWN)[0] == 404  # a client of the proxy
    daemon.until(f"/emails/{id_}", daemon.facts["api_key"], lambda body: body["last_event"] == "clicked")
    assert daemon.stop() == 0


@contextmanager
def caddy(folder: Path, port: int, daemon: int) -> Iterator[None]:
    """As docs/tracking.md configures it, with certificates of its own authority."""
    config = folder / "Caddyfile"
    config.write_text(f"""{{
        admin off
        storage file_system {folder}/caddy
        auto_https disable_redirects
        skip_install_trust
        on_demand_tls {{
            ask http://127.0.0.1:{daemon}/tracking/ask
        }}
    }}
    https://:{port} {{
        tls internal {{
            on_demand
        }}
        reverse_proxy 127.0.0.1:{daemon}
    }}
    """)
    assert CADDY is not None
    with (folder / "caddy.log").open("wb") as log:
        process = subprocess.Popen(
            [CADDY, "run", "--config", str(config), "--adapter", "caddyfile"],
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )
    try:
        eventually(lambda: [(1,)] if reachable(port) else [])
        yield
    finally:
        process.terminate()
        process.wait(30)


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def served(port: int, host: str, path: str) -> tuple[int, str | None, bytes] | None:
    try:
        return over_tls(port, host, path, host)
    except ssl.SSLError:
        return None


def over_tls(port: int, name: str, path: str, host: str) -> tuple[int, str | None, bytes]:
    """The answer over TLS with this server name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # of Caddy's own authority
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain, context.wrap_socket(plain, server_hostname=name) as secure:
        connection = http.client.HTTPConnection(host)
        connection.sock = secure
        connection.request("GET", path, headers={"Host": host, "User-Agent": BROWSER})
        response = connection.getresponse()
        return response.status, response.getheader("location"), response.read()


def verify(database: str, domain_id: str, host: str) -> None:
    """What a check of the domain stores that found its tracking record."""
    record = {"purpose": "Tracking", "type": "CNAME", "name": host, "expected": OWN, "required": False, "status": "verified"}
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        sql = "UPDATE domains SET tracking_subdomains = %s, records = %s::jsonb, next_check_at = NULL WHERE id = %s"
        cursor.execute(sql, ([CUSTOMERS], json.dumps([record]), domain_id))
    connection.close()
