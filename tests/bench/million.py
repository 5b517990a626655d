"""`python -m tests.bench.million`: how long the dashboard's pages take with 1,000,000 emails and as many contacts of one account.

The times are those at the server, and that of the broadcast editor in Chromium. Everything is in a folder of its own that is removed after;
it takes a few minutes. On a loaded machine the times are upper bounds. What it prints is for docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

import attrs
import psycopg2

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.bench import audience_pages, editor
from tests.end_to_end.rig import Daemon
from tests.end_to_end.visitor import Visitor

TARGET = 50  # milliseconds
# An email every 80 ms, back from now: the last 22 hours of 1,000,000. The ids are those that uuid7 makes.
MADE = """
CREATE TEMP TABLE made AS
SELECT i, at, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(i %% 4096), 3, '0')
       || '8' || lpad(to_hex(i), 15, '0'))::uuid AS id
FROM (SELECT i, now() - (%(count)s - i) * interval '80 ms' AS at FROM generate_series(1, %(count)s) AS i) AS numbered
"""
EMAILS = """
INSERT INTO emails (account_id, email_id, created_at, source, domain_id, message_id, sender, to_, cc, bcc, reply_to, recipients, subject,
                    size, bulk)
SELECT %(account)s, made.id, at, 'api', d.id, '<' || made.id || '@example.com>',
       'Shop <hello@example.com>', ARRAY['user' || i || '@example.com'],
       '{}', '{}', '{}', ARRAY['user' || i || '@example.com'], 'Order ' || i, 4096, false
FROM made, domains d WHERE d.account_id = %(account)s
"""
EVENTS = """
INSERT INTO events (account_id, email_id, event_id, recipient, type, at)
SELECT %(account)s, id, id, 0, CASE WHEN i %% 200 = 0 THEN 'email.bounced' ELSE 'email.delivered' END, at FROM made
"""
ROLLUPS = """
INSERT INTO rollups (account_id, hour, domain_id, type, count)
SELECT %(account)s, h, d.id, t, 45000 FROM domains d, generate_series(now() - interval '30 days', now(), '1 hour') AS g(at),
       date_trunc('hour', g.at) AS h, unnest(ARRAY['email.sent', 'email.delivered', 'email.bounced.permanent']) AS t
WHERE d.account_id = %(account)s ON CONFLICT DO NOTHING
"""


REQUESTS = """
INSERT INTO request_log (account_id, log_id, method, path, status, user_agent, milliseconds)
SELECT %(account)s, id, 'POST', '/emails', CASE WHEN i %% 500 = 0 THEN 422 ELSE 200 END, 'resend-python:2.51.0', 3.5 FROM made
"""
SESSIONS = """
INSERT INTO receipts (account_id, receipt_id, key_id, opened_at, closed_at, port, tls, mails, refusals, transcript)
SELECT %(account)s, id, id, at, at, 587, 'TLSv1.3', 1, 0, 'S: 220 ready' FROM made WHERE i %% 10 = 0
"""
# The newest hundred have all that an email's page shows.
MESSAGES = """
INSERT INTO messages (account_id, email_id, piece, bytes)
SELECT %(account)s, id, 0, convert_to(%(message)s, 'UTF8') FROM made WHERE i > %(count)s - 100
"""
ATTEMPTS = """
INSERT INTO attempts (account_id, email_id, attempt_id, recipients, outcomes, replies, host, address, tls, started_at, seconds, transcript)
SELECT %(account)s, id, id, '{0}', '{delivered}', '{250 ok}', 'mx.example.com', '192.0.2.1:25', 'TLSv1.3', at, 0.2, repeat('C: NOOP ', 200)
FROM made WHERE i > %(count)s - 100
"""
PARAGRAPH = '<p>Your order is on its way. <a href="https://example.com/orders/1?item=%d">See it</a></p>'
HEAD = "From: Shop <hello@example.com>\r\nTo: user@example.com\r\nSubject: Order\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
MESSAGE = HEAD + "\r\n".join(PARAGRAPH % number for number in range(200))


def fill(dsn: str, account: str, count: int) -> None:
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        for statement in (MADE, EMAILS, EVENTS, ROLLUPS, REQUESTS, SESSIONS, MESSAGES, ATTEMPTS, *audience_pages.FILL):
            cursor.execute(statement, {"account": account, "count": count, "message": MESSAGE})
    connection.close()
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    connection.cursor().execute("ANALYZE")
    connection.close()


@attrs.frozen
class Took:
    """Milliseconds in which the daemon and its Postgres had a processor, for the first time and after that; those that the daemon logs; and
    the bytes of the page.
    """

    first: float
    busy: float
    median: float
    slow: float  # the 95th percentile
    worst: float
    size: int


def took(visitor: Visitor, postmaster: int, path: str, rounds: int) -> Took:
    """The first round uses connections that have not made this request yet."""
    daemon = visitor.daemon
    assert daemon.process is not None
    started = _busy(daemon.process.pid, postmaster)
    visitor.get(path)
    before, busy = len(daemon.log), _busy(daemon.process.pid, postmaster)
    first = _since(started, busy)
    for _ in range(rounds):
        shown = visitor.get(path)
        assert shown.status == 200, (path, shown.status)
    then = _since(busy, _busy(daemon.process.pid, postmaster)) / rounds
    time.sleep(0.2)
    found = [float(text) for text in re.findall(r" 200 ([\d.]+) ms", daemon.log[before:])]
    return Took(first, then, statistics.median(found), sorted(found)[int(0.95 * len(found))], max(found), len(shown.text.encode()))


def _busy(daemon: int, postmaster: int) -> dict[int, float]:
    """Returns CPU milliseconds so far of a daemon and all processes of Postgres."""
    pids = {daemon, postmaster}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            own = int(stat.read_text().rpartition(")")[2].split()[1]) == postmaster
            if own and b"autovacuum" not in stat.with_name("cmdline").read_bytes():
                pids.add(int(stat.parent.name))
    found: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6
    return found


def _since(before: dict[int, float], now: dict[int, float]) -> float:
    """Returns the CPU time added by processes that still run."""
    return sum(busy - before.get(pid, 0) for pid, busy in now.items())


def exported(visitor: Visitor, path: str) -> str:
    """Measures how long it takes to delete everything, and the growth of the daemon's memory."""
    assert visitor.daemon.process is not None
    status = Path(f"/proc/{visitor.daemon.process.pid}/status")
    before, started = _peak(status), time.monotonic()
    path = visitor.get(path).location
    connection = http.client.HTTPConnection("127.0.0.1", visitor.daemon.port, timeout=60)
    headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())}
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    visitor.get(path)
    connection.request("POST", path, urlencode({"token": visitor.token}), headers)
    answer, lines = connection.getresponse(), 0
    while piece := answer.read(1 << 20):
        lines += piece.count(b"\n")
    seconds = time.monotonic() - started
    return f"Export: {lines - 1:,} lines in {seconds:.0f} s; the daemon grew by {(_peak(status) - before) / 1024:.0f} MB."


def _peak(status: Path) -> int:
    """In kB."""
    return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emails", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-million-"))
    folder.chmod(0o711)
    server, daemon = EmbeddedPostgres.at(folder / "postgres"), None
    try:
        dsn = server.start_blocking()
        postmaster = server.pid
        assert postmaster is not None
        daemon = Daemon(folder, dsn)
        daemon.start()
        visitor = Visitor(daemon)
        visitor.sign_in(daemon.facts["sign_in"])
        fill(dsn, daemon.facts["account_id"], options.emails)
        first = visitor.get("/dashboard/emails")
        one = re.search(r'href="(/dashboard/emails/[0-9a-f-]{36})"', first.text)
        older = re.search(r'href="(/dashboard/emails\?after=[0-9a-f-]+)"', first.text)
        assert one and older
        pages = {
            "Home": "/dashboard",
            "Emails": "/dashboard/emails",
            "Emails, the next page": older[1],
            "Emails that bounced": "/dashboard/emails?status=bounced",
            "Emails, a subject that is there": "/dashboard/emails?q=Order+99",
            "Emails, a subject that is not": "/dashboard/emails?q=nothing+of+this",
            "One email": one[1],
            "One email, its insights": f"{one[1]}?view=insights",
            "API keys": "/dashboard/keys",
            "Logs": "/dashboard/logs",
            "Logs that are errors": "/dashboard/logs?status=errors",
            "Logs, a path that is not there": "/dashboard/logs?q=nothing+of+this",
            "Webhooks": "/dashboard/webhooks",
            "Suppressions": "/dashboard/suppressions",
            "Settings, team": "/dashboard/settings",
            "Settings, usage": "/dashboard/settings/usage",
            "Settings, SMTP": "/dashboard/settings/smtp",
            "Settings, audit log": "/dashboard/settings/audit",
            "Metrics, 30 days": "/dashboard/metrics?days=30",
            "Metrics, by provider": "/dashboard/metrics/providers",
            "Domains": "/dashboard/domains",
            **audience_pages.pages(dsn),
        }
        heaviest, slow = 0, list[str]()
        print(f"{options.emails:,} emails, as many contacts\n")
        print("| page | processor: first, then | median | p95 | worst | size |\n|---|---|---|---|---|---|")
        for name, path in pages.items():
            of = took(visitor, postmaster, path, options.rounds)
            heaviest = max(heaviest, of.size)
            times = f"{of.median:.0f} ms | {of.slow:.0f} ms | {of.worst:.0f} ms"
            row = f"| {name} | {of.first:.0f}, {of.busy:.0f} ms | {times} | {of.size / 1024:.0f} kB |"
            print(row, flush=True)
            slow += [f"{name} ({of.slow:.0f} ms)"] if of.slow > TARGET else []
        print(f"\nMore than {TARGET} ms for one request in twenty: {', '.join(slow) or 'no page'}. Load: {os.getloadavg()[0]:.1f}.")
        print(editor.measure(daemon.port, visitor.cookies, audience_pages.EDITOR), flush=True)
        print(f"\nThe heaviest has {heaviest / 1024:.0f} kB. {exported(visitor, '/dashboard/emails/export')}", flush=True)
    finally:
        if daemon is not None:
            daemon.stop()
        server.stop_blocking()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
