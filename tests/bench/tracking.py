"""`python -m tests.bench.tracking`: how fast one process answers pixels and tracked links while it accepts and delivers mail.

A daemon, a Postgres and a mail server of their own. Opens and clicks come at fixed rates over connections that stay open, through one
client process; each latency counts from when the request was due. For "as fast as possible", every connection sends its next request at
once. Meanwhile `POST /emails` comes at `--mails` per second. What it prints is for docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import re
import statistics
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import psycopg2

from mailsvc.mail.tracking.token import PURPOSE, Key, Tracked, day_of, make
from mailsvc.store.encryption.secrets import Encryption
from tests.bench import machine
from tests.bench.product import Product
from tests.end_to_end.rig import free_port
from tests.end_to_end.sink import Sink

HOST = "127.0.0.1"  # of base_url
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/142.0 Safari/537.36"
CONNECTIONS = 50
EMAILS = """
INSERT INTO emails (account_id, email_id, created_at, source, domain_id, message_id, sender, to_, cc, bcc, reply_to, recipients,
                    subject, size, bulk)
SELECT d.account_id, (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
       now(), 'api', d.id, '<1@example.com>', 'a@example.com', ARRAY['b@example.net'], '{}', '{}', '{}', ARRAY['b@example.net'],
       'Hi', 4096, false
FROM generate_series(1, %s) n, domains d RETURNING account_id, email_id
"""
ENDED = """
INSERT INTO events SELECT account_id, email_id, email_id, 0, 'email.delivered', created_at FROM emails WHERE size = 4096
"""
STORED = "SELECT count(*) FROM events WHERE type IN ('email.opened', 'email.clicked')"


@attrs.frozen
class Answers:
    """Seconds that each answer took, and how long all of them did."""

    latencies: list[float]
    seconds: float
    wrong: int

    def shown(self, name: str) -> str:
        ordered = sorted(self.latencies)
        p50, p99 = statistics.median(ordered) * 1000, ordered[len(ordered) * 99 // 100] * 1000
        rate = len(ordered) / self.seconds
        return f"{name}: {rate:,.0f}/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {ordered[-1] * 1000:.1f} ms, wrong {self.wrong}"


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def _ask(link: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str) -> bool:
    reader, writer = link
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: {AGENT}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    if found is not None and int(found[1]):
        await reader.readexactly(int(found[1]))
    return head.startswith(b"HTTP/1.1 302 " if path.startswith("/c/") else b"HTTP/1.1 200 ")


async def _at_rate(port: int, paths: list[str], rate: float, seconds: float) -> Answers:
    free: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await _open(port))
    latencies: list[float] = []
    wrong = 0
    begun = time.monotonic()

    async def one(due: float, path: str) -> None:
        nonlocal wrong
        link = await free.get()
        wrong += not await _ask(link, path)
        latencies.append(time.monotonic() - due)
        free.put_nowait(link)

    tasks = []
    for n in range(int(rate * seconds)):
        due = begun + n / rate
        if (pause := due - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        tasks.append(asyncio.create_task(one(due, random.choice(paths))))
    await asyncio.gather(*tasks)
    return Answers(latencies, time.monotonic() - begun, wrong)


async def _as_fast_as_possible(port: int, paths: list[str], seconds: float) -> Answers:
    latencies: list[float] = []
    wrong, begun = 0, time.monotonic()

    async def one() -> None:
        nonlocal wrong
        link = await _open(port)
        while (at := time.monotonic()) < begun + seconds:
            wrong += not await _ask(link, random.choice(paths))
            latencies.append(time.monotonic() - at)

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return Answers(latencies, time.monotonic() - begun, wrong)


def client(pipe: Connection, port: int, paths: list[str]) -> None:
    """A process that answers each (rate, seconds) with Answers; rate 0: as fast as possible."""
    while (wanted := pipe.recv()) is not None:
        rate, seconds = wanted
        work = _at_rate(port, paths, rate, seconds) if rate else _as_fast_as_possible(port, paths, seconds)
        pipe.send(asyncio.run(work))


def mails(port: int, key: str, sender: str, rate: float, stop: Any) -> None:
    """A process that sends an email at a time."""
    body = json.dumps({"from": sender, "to": "somebody@d1.test", "subject": "Hi", "html": "<p>Hello</p>" * 100}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    due = time.monotonic()
    while not stop.is_set():
        due += 1 / rate
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/emails", body, headers), timeout=30).read()
        time.sleep(max(0.0, due - time.monotonic()))


def prepare(product: Product, count: int) -> list[str]:
    """Emails without messages, and the paths of their pixels and links."""
    encryption = Encryption.load(product.folder / "secret.key")
    number, secret = next(iter(encryption.numbered_secrets_for(PURPOSE).items()))
    key, day = Key(number, secret), day_of(time.time())
    with psycopg2.connect(product.postgres.dsn()) as link, link.cursor() as cursor:
        cursor.execute(EMAILS, (count,))
        emails = [(UUID(str(account)), UUID(str(email))) for account, email in cursor.fetchall()]
        cursor.execute(ENDED)
    link.close()
    paths = [f"/o/{make(Tracked(account, email, day), key)}" for account, email in emails]
    url = "https://example.com/offers/november?utm_source=news"
    return paths + [f"/c/{make(Tracked(account, email, day, 1, url), key)}" for account, email in emails]


def stored(product: Product) -> int:
    link = psycopg2.connect(product.postgres.dsn())
    with link, link.cursor() as cursor:
        cursor.execute(STORED)
        [(count,)] = cursor.fetchall()
    link.close()
    return int(count)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--rates", default="500,1000,0", help="requests per second; 0: as fast as possible")
    parser.add_argument("--mails", type=float, default=20.0, help="emails per second meanwhile")
    parser.add_argument("--emails", type=int, default=20_000, help="that are opened and clicked")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mailsvc-bench-") as folder:
        sink = Sink(free_port())
        sink.start()
        product = Product(Path(folder), sink.port)
        product.start()
        try:
            measure(product, chosen)
        finally:
            product.stop()
            sink.stop()


def measure(product: Product, chosen: argparse.Namespace) -> None:
    """One line for each rate."""
    daemon = product.first
    paths = prepare(product, chosen.emails)
    ours, theirs = multiprocessing.Pipe()
    stop = multiprocessing.Event()
    visitor = multiprocessing.Process(target=client, args=(theirs, daemon.port, paths))
    arguments = (daemon.port, daemon.facts["api_key"], product.sender, chosen.mails, stop)
    sender = multiprocessing.Process(target=mails, args=arguments)
    visitor.start()
    sender.start()
    try:
        for rate in map(float, chosen.rates.split(",")):
            before, used = stored(product), [machine.cpu([pid]) for pid in product.pids]
            ours.send((rate, chosen.seconds))
            answers = ours.recv()
            time.sleep(5)  # until the last ones are stored
            daemon_ms, postgres_ms = (
                (machine.cpu([pid]) - then) * 1000 / len(answers.latencies) for pid, then in zip(product.pids, used, strict=True)
            )
            name = f"{rate:,.0f}/s" if rate else "as fast as possible"
            print(f"{answers.shown(name)}, stored {stored(product) - before:,}", end="; ")
            print(f"CPU for each, mails included: daemon {daemon_ms:.2f} ms, Postgres {postgres_ms:.2f} ms", flush=True)
    finally:
        ours.send(None)
        stop.set()
        for process in (visitor, sender):
            process.join(60)


if __name__ == "__main__":
    main()
