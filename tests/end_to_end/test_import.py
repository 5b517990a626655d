"""An import of a CSV file by a running daemon, killed in between: every row once, and the counts agree with the contacts.

ROWS=1000000 with -s prints how long a large one takes.
"""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path

import pytest

from tests.end_to_end.rig import Daemon, rows

ROWS = int(os.environ.get("ROWS", "60000"))
KILLS = int(os.environ.get("KILLS", "2"))
BOUNDARY = "a-boundary"


def form(data: bytes, **fields: str) -> bytes:
    """The body that the libraries send: the file is called blob and has no type that says anything."""
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items()]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="blob"\r\nContent-Type: application/octet-stream\r\n\r\n'
    return b"".join([*parts, head.encode(), data, f"\r\n--{BOUNDARY}--\r\n".encode()])


def upload(daemon: Daemon, data: bytes, **fields: str) -> str:
    headers = {"Authorization": f"Bearer {daemon.facts['api_key']}", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    url = f"http://127.0.0.1:{daemon.port}/contacts/imports"
    request = urllib.request.Request(url, form(data, **fields), {**headers, "User-Agent": "tests"}, method="POST")
    answer = daemon._answer(request, 120)
    assert answer.status == 201, answer
    return str(answer.body["id"])


@pytest.mark.slow
def test_import_survives_kills(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.start()
    key = daemon.facts["api_key"]
    segment = daemon.call("POST", "/segments", {"name": "all"}).body["id"]
    lines = [f"person{n}@example{n % 50}.net,First {n},{n}\n" if n % 1000 else "nobody,,\n" for n in range(1, ROWS + 1)]
    data = ("email,first_name,seats\n" + "".join(lines)).encode()
    columns = '{"properties": {"seats": {"column": "seats", "type": "number"}}}'
    began = time.monotonic()
    import_id = upload(daemon, data, column_map=columns, segments=f'[{{"id": "{segment}"}}]')
    uploaded = time.monotonic()
    path = f"/contacts/imports/{import_id}"
    for kill in range(KILLS):
        daemon.until(path, key, lambda found, n=kill: found["counts"]["total"] > n * ROWS / (KILLS + 1) or found["completed_at"])
        daemon.kill()
        daemon.start()
    done = daemon.until(path, key, lambda found: found["completed_at"], 600)
    took = time.monotonic() - began
    failed = ROWS // 1000
    assert done["status"] == "completed"
    assert done["counts"] == {"total": ROWS, "created": ROWS - failed, "updated": 0, "skipped": 0, "failed": failed}
    counted = "SELECT count(*), count(DISTINCT address), count(*) FILTER (WHERE properties <> '{}') FROM contacts"
    assert rows(database, counted) == [(ROWS - failed,) * 3]
    assert rows(database, "SELECT count(*) FROM contact_segments") == [(ROWS - failed,)]
    assert rows(database, "SELECT count(*) FROM contact_import_chunks") == [(0,)]
    [(first, last)] = rows(database, "SELECT min(line), max(line) FROM contact_import_errors")
    assert (first, last) == (1001, ROWS // 1000 * 1000 + 1)
    print(f"{ROWS} rows in {took:.1f} s, {uploaded - began:.1f} s of it for the upload")
    if KILLS == 0 and "MEASURE" in os.environ:
        measure(daemon, segment, database)
    assert daemon.stop() == 0


def measure(daemon: Daemon, segment: str, database: str) -> None:
    """Pages at every depth, and searches."""
    ids = [str(id_) for (id_,) in rows(database, "SELECT id FROM contacts ORDER BY id DESC")]
    for what, base in (("contacts", "/contacts?limit=100"), ("segment", f"/segments/{segment}/contacts?limit=100")):
        spent = []
        for n in range(200):
            began = time.monotonic()
            answer = daemon.call("GET", f"{base}&after={ids[len(ids) * n // 200]}")
            spent.append(time.monotonic() - began)
            assert answer.status == 200 and answer.body["data"]
        spent.sort()
        print(f"{what}: p50 {spent[100] * 1000:.1f} ms, p99 {spent[197] * 1000:.1f} ms")


@pytest.mark.parametrize("size", [2 << 20])
def test_large_upload_is_not_held_in_memory(tmp_path: Path, database: str, size: int) -> None:
    """The largest file that is allowed, and one byte more."""
    daemon = Daemon(tmp_path, database, {"audience": {"import_size": size}})
    daemon.start()
    line = b"x" * 90 + b"@example.net\n"
    data = b"email\n" + line * (size // len(line))
    import_id = upload(daemon, data[:size])
    done = daemon.until(f"/contacts/imports/{import_id}", daemon.facts["api_key"], lambda found: found["completed_at"], 60)
    assert done["counts"]["failed"] == done["counts"]["total"]
    headers = {"Authorization": f"Bearer {daemon.facts['api_key']}", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    url = f"http://127.0.0.1:{daemon.port}/contacts/imports"
    request = urllib.request.Request(url, form(data + b"x" * (2 << 20)), {**headers, "User-Agent": "tests"}, method="POST")
    assert daemon._answer(request, 60).status == 413
    assert daemon.stop() == 0
