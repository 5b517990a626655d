"""`python -m tests.bench.contacts [COUNT] [--megabytes 200]`: imports a file with COUNT contacts over HTTP, then lists and searches them.

The file is sent piece by piece and filled with a property to the given size. It prints how long the upload and the import take, the memory
of the daemon meanwhile, and the response times of pages at 200 depths and of searches: the median and the 99th percentile. It fails if
the daemon's memory grows by more than 100 MB. What it prints is for docs/performance.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import psycopg2

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.bench.broadcasts import Memory
from tests.end_to_end.rig import Daemon, rows

BOUNDARY = "a-boundary"
GROWTH = 100  # MB at most
DEPTHS = 200
HEADER = "email,first_name,last_name,note\n"
PIECE = 2000  # rows that are sent at once


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.contacts", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=199)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mailsvc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        postgres = EmbeddedPostgres.at(folder / "postgres")
        try:
            dsn = postgres.start_blocking()
            (folder / "daemon").mkdir()
            daemon = Daemon(folder / "daemon", dsn)
            daemon.start()
            try:
                measure(daemon, dsn, given.count, given.megabytes)
            finally:
                daemon.stop()
        finally:
            postgres.stop_blocking()


def measure(daemon: Daemon, dsn: str, count: int, megabytes: int) -> None:
    daemon.call("POST", "/contact-properties", {"key": "note", "type": "string"})
    segment = daemon.call("POST", "/segments", {"name": "All"}).body["id"]
    memory = Memory(daemon)
    with memory.watched():
        time.sleep(2)  # what it has before
        begun = time.monotonic()
        import_id = upload(daemon, count, megabytes, segment)
        uploaded = time.monotonic() - begun
        done = daemon.until(f"/contacts/imports/{import_id}", daemon.facts["api_key"], lambda found: found["completed_at"], 3600)
        whole = time.monotonic() - begun
    assert done["counts"] == {"total": count, "created": count, "updated": 0, "skipped": 0, "failed": 0}, done
    print(f"{count:,} rows in {megabytes} MB: uploaded in {uploaded:.1f} s, imported {whole:.1f} s after the beginning")
    print(memory)
    grown = max(memory.seen) - memory.seen[0]
    assert grown <= GROWTH, f"the memory grew by {grown:.0f} MB"
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    connection.close()
    ids = [str(id_) for (id_,) in rows(dsn, "SELECT id FROM contacts ORDER BY id DESC")]
    client = Client(daemon)
    edges = [ids[len(ids) * n // DEPTHS] for n in range(DEPTHS)]
    client.timed("a page of contacts", [f"/contacts?limit=100&after={edge}" for edge in edges])
    client.timed("a page of a segment", [f"/segments/{segment}/contacts?limit=100&after={edge}" for edge in edges])
    client.timed("a search for an address", [f"/contacts?search=person{count * n // DEPTHS}%40example.net" for n in range(DEPTHS)])
    client.timed("a search for a part that is frequent", [f"/contacts?search=first&limit=100&after={edge}" for edge in edges])
    client.timed("a search for a part that nobody has", [f"/contacts?search=nobody&after={edge}" for edge in edges])
    within = [f"/contacts?search=nobody&segment_id={segment}&after={edge}" for edge in edges]
    client.timed("the same in a segment", within)


def upload(daemon: Daemon, count: int, megabytes: int, segment: str) -> str:
    """Sends the file without holding it in memory. Returns the import's ID."""
    option = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="segments"\r\n\r\n[{{"id": "{segment}"}}]\r\n'
    head = f'{option}--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="blob"\r\n\r\n{HEADER}'.encode()
    tail = f"\r\n--{BOUNDARY}--\r\n".encode()
    length = megabytes * 1_000_000 // count  # of a row
    assert length >= 70, "too many rows for so few megabytes"
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=300)
    headers = {
        "Authorization": f"Bearer {daemon.facts['api_key']}", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
        "Content-Length": str(len(head) + count * length + len(tail)), "User-Agent": "bench",
    }  # fmt: skip

    def pieces() -> Iterator[bytes]:
        yield head
        for start in range(0, count, PIECE):
            yield b"".join([_row(n, length) for n in range(start, min(start + PIECE, count))])
        yield tail

    connection.request("POST", "/contacts/imports", pieces(), headers)
    answer = connection.getresponse()
    body = json.load(answer)
    assert answer.status == 201, body
    return str(body["id"])


def _row(number: int, length: int) -> bytes:
    row = f"person{number}@example.net,First {number},Last,"
    return f"{row}{'x' * (length - len(row) - 1)}\n".encode()


@attrs.define
class Client:
    """One connection, so that only the responses are measured."""

    daemon: Daemon
    _connection: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=60)

    def timed(self, what: str, paths: Sequence[str]) -> None:
        headers = {"Authorization": f"Bearer {self.daemon.facts['api_key']}", "User-Agent": "bench"}
        spent = []
        for path in paths:
            begun = time.monotonic()
            self._connection.request("GET", path, headers=headers)
            answer = self._connection.getresponse()
            body = answer.read()
            spent.append((time.monotonic() - begun) * 1000)
            assert answer.status == 200, body
        spent.sort()
        print(f"{what}: median {spent[len(spent) // 2]:.1f} ms, p99 {spent[len(spent) * 99 // 100]:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
