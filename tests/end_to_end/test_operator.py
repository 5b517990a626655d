"""The operator's hand on the queue, as a person would have it: the command, the socket, a running daemon."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.rig import Daemon, free_port, rows
from tests.end_to_end.sink import Sink


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture
def daemon(tmp_path: Path, database: str, sink: Sink) -> Iterator[Daemon]:
    routes = {"dead.example": f"smtp://127.0.0.1:{free_port()}", "*": f"smtp://127.0.0.1:{sink.port}"}
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": routes, "hold_first": 3600, "hold_longest": 3600}})
    daemon.start()
    yield daemon
    daemon.stop()


def send(daemon: Daemon, to: str) -> str:
    answer = daemon.call("POST", "/emails", {"from": f"shop@{daemon.facts['domain']}", "to": to, "subject": "Hi", "text": "Hi"})
    assert answer.status == 200, answer
    return str(answer.body["id"])


def queue(daemon: Daemon, *arguments: str) -> Any:
    return json.loads(daemon.command("queue", *arguments, "--json"))


def destination(daemon: Daemon, name: str, seconds: float = 10.0, **wanted: object) -> dict[str, Any]:
    """What the list says of a destination once it says what is wanted."""
    deadline = time.monotonic() + seconds
    while True:
        found = {each["name"]: each for each in queue(daemon, "list")["destinations"]}.get(name, {})
        if found and all(found[key] == value for key, value in wanted.items()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_what_waits_is_shown_with_its_reason_paused_resumed_and_tried_again(daemon: Daemon, sink: Sink) -> None:
    dead = daemon.changes["delivery"]["routes"]["dead.example"].removeprefix("smtp://")  # type: ignore[index]
    send(daemon, "x@dead.example")
    found = destination(daemon, dead, delayed=1)
    assert found["state"] == "backoff"
    assert "refused the connection" in found["reason"]
    assert found["until"] > "2026"
    assert found["oldest_seconds"] < 60

    live = f"127.0.0.1:{sink.port}"
    assert queue(daemon, "pause", "--destination", live, "--for", "1h", "--reason", "maintenance")["paused"] == live
    time.sleep(1.2)  # other processes look every second, and so does this one
    email = send(daemon, "a@example.net")
    found = destination(daemon, live, queued=1)
    assert (found["state"], found["reason"]) == ("paused", "Paused by the operator: maintenance.")
    [waiting] = queue(daemon, "show", email)["waiting"]
    assert waiting["reason"] == "Paused by the operator: maintenance."
    assert sink.received == []
    assert queue(daemon, "resume", "--destination", "example.net")["destinations"] == [live], "the recipient's domain"
    sink.wait_until(lambda received: len(received) == 1, 10)

    before = destination(daemon, dead, delayed=1)["until"]
    assert queue(daemon, "retry", "--destination", dead)["recipients"] in (0, 1), "none, if its next attempt was due anyway"
    deadline = time.monotonic() + 10
    while destination(daemon, dead)["until"] in (before, None):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert queue(daemon, "list")["unexplained"] == 0


def test_an_unknown_destination_is_refused(daemon: Daemon) -> None:
    for command in ("pause", "resume", "retry"):
        status, printed = daemon.command_fails("queue", command, "--destination", "nobody@example.net")
        assert (status, "There is no pool 'nobody'." in printed) == (1, True)
    assert rows(daemon.database, "SELECT name FROM destinations") == []


def test_an_account_is_paused_and_resumed(daemon: Daemon, sink: Sink) -> None:
    name = daemon.facts.get("account", "1")
    queue(daemon, "pause", "--account", str(name))
    time.sleep(1.2)
    email = send(daemon, "a@example.net")
    time.sleep(1.5)
    assert sink.received == []
    [waiting] = queue(daemon, "show", email)["waiting"]
    assert (waiting["status"], waiting["reason"]) == ("queued", "Paused by the operator.")
    assert [each["reason"] for each in queue(daemon, "list")["paused_accounts"]] == ["Paused by the operator."]
    queue(daemon, "resume", "--account", str(name))
    sink.wait_until(lambda received: len(received) == 1, 10)


def test_the_mail_of_a_held_account_is_queued_with_the_reason_and_flows_after_the_release(daemon: Daemon, sink: Sink) -> None:
    """The hold is the row that accounts/abuse writes when the rates are too high."""
    reason = "The account's mail is on hold. Too many bounces."
    account = daemon.facts["account_id"]
    hold = "INSERT INTO account_pauses VALUES (%s, %s, '9999-12-31 00:00+00', true, now(), true) RETURNING 1"
    assert rows(daemon.database, hold, account, reason) == [(1,)]
    time.sleep(1.2)  # the daemon reads pauses every second
    email = send(daemon, "a@example.net")
    [recipient] = daemon.call("GET", f"/emails/{email}").body["recipients"]
    assert recipient["reason"] == reason
    assert [each["reason"] for each in queue(daemon, "list")["paused_accounts"]] == [reason]
    story = daemon.command("explain", email)
    assert f"It is not delivered yet. {reason} It waits until the operator releases it. If it is still waiting at " in story
    assert sink.received == []
    assert "1 queued recipients are due now" in daemon.command("account", "release", str(account))
    sink.wait_until(lambda received: len(received) == 1, 10)
    assert "was not on hold" in daemon.command("account", "release", str(account))
    assert daemon.command("account", "trust", str(account), "--off").endswith("is no longer trusted.\n")
    assert [action for (action,) in rows(daemon.database, "SELECT action FROM audit WHERE account_id = %s ORDER BY id", account)][-2:] == [
        "mail released", "account no longer trusted",
    ]  # fmt: skip


def test_only_the_owner_may_open_the_socket_and_nonsense_is_answered(daemon: Daemon) -> None:
    assert stat.S_IMODE(os.stat(daemon.socket).st_mode) == 0o600
    for line, message in ((b"what?\n", "Expected a JSON object"), (b'{"do": "pause", "x": 1}\n', "unknown field")):
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(daemon.socket)
            wire.sendall(line)
            assert message in json.loads(wire.makefile().readline())["error"]


def test_without_a_daemon_the_command_says_so(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.write()
    with pytest.raises(AssertionError, match="does not answer"):
        daemon.command("queue", "list")


def test_the_doctor_in_a_closed_network(daemon: Daemon) -> None:
    for arguments in ((), ("--no-probe",)):  # its settings have a server for all domains
        found = {each["check"]: each for each in json.loads(daemon._run(("doctor", "--json", *arguments)).stdout)}
        assert found["internet"]["state"] == "warning" and "--probe DOMAIN" in found["internet"]["remedy"]
        assert not found.keys() & {"dns", "port 25 over IPv4", "port 25 over IPv6"}
        assert found["sender"]["state"] == "warning" and found["sender"]["found"].startswith("Not set")
    assert "cannot be used together" in daemon.command_fails("doctor", "--no-probe", "--probe", "localhost")[1]


def test_the_doctor_examines_this_machine(daemon: Daemon) -> None:
    done = daemon._run(("doctor", "--json", "--probe", "localhost", "--dnsbl", "list.invalid"))
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert found["clock"]["state"] == "ok"
    assert found["postgres synchronous_commit"]["state"] == "ok"
    assert found["port 25 over IPv4"]["state"] in ("error", "warning")
    assert found["stored emails"]["state"] == "ok" and "kept for 30 days" in found["stored emails"]["found"]
    assert done.returncode == int(any(each["state"] == "error" for each in found.values()))
    assert all(each["remedy"] for each in found.values() if each["state"] == "error")
