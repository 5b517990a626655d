"""`python -m tests.bench.million`: how long the dashboard's pages take at the server with 1,000,000 emails of one account in the tables.

Everything in a folder of its own that is removed after; a minute or two. What it prints is for docs/performance.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import psycopg2

from mailsvc.store.embedded import EmbeddedPostgres
from tests.whole.rig import Daemon
from tests.whole.visitor import Visitor

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


def fill(dsn: str, account: str, count: int) -> None:
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        for statement in (MADE, EMAILS, EVENTS, ROLLUPS):
            cursor.execute(statement, {"account": account, "count": count})
    connection.close()
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    connection.cursor().execute("ANALYZE")
    connection.close()


def times(visitor: Visitor, path: str, rounds: int) -> tuple[float, float, int]:
    """Median and worst milliseconds as the daemon logs them, and the octets of the page."""
    before = len(visitor.daemon.log)
    for _ in range(rounds):
        shown = visitor.get(path)
        assert shown.status == 200, (path, shown.status)
    time.sleep(0.2)
    found = [float(text) for text in re.findall(r" 200 ([\d.]+) ms", visitor.daemon.log[before:])]
    return statistics.median(found), max(found), len(shown.text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emails", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-million-"))
    folder.chmod(0o711)
    server = EmbeddedPostgres.at(folder / "postgres")
    try:
        dsn = server.start_blocking()
        daemon = Daemon(folder, dsn)
        daemon.start()
        visitor = Visitor(daemon)
        visitor.sign_in(daemon.facts["sign_in"])
        fill(dsn, daemon.facts["account_id"], asked.emails)
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
            "Metrics, 30 days": "/dashboard/metrics?days=30",
            "Domains": "/dashboard/domains",
        }
        print(f"{asked.emails:,} emails\n\n| page | median | worst | size |\n|---|---|---|---|")
        for name, path in pages.items():
            median, worst, size = times(visitor, path, asked.rounds)
            print(f"| {name} | {median:.0f} ms | {worst:.0f} ms | {size / 1024:.0f} kB |", flush=True)
        daemon.stop()
    finally:
        server.stop_blocking()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
