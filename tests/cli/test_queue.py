"""How `mailsvc queue list` shows a destination, and `mailsvc queue resume` what still holds its mail."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from mailsvc.cli import queue
from mailsvc.cli.queue import _line

EMPTY = {"queued": 0, "delayed": 0, "uncertain": 0, "sending": 0, "scheduled": 0, "oldest_seconds": None, "until": None, "next_at": None}


def line(lane: dict[str, Any] | None, **values: Any) -> str:
    return _line({"name": "big/mx.big.example", "lane": lane, "reason": None} | EMPTY | values)


def test_the_rate_after_a_throttling_reply_is_shown() -> None:
    lane = {"delivered_per_minute": 5, "connections": 1, "slowed_to_per_minute": 12.0}
    assert line(lane, queued=3) == "big/mx.big.example  3 queued  5/min, 1 connections  slowed to 12/min"
    assert line(lane | {"slowed_to_per_minute": None}, queued=3) == "big/mx.big.example  3 queued  5/min, 1 connections"
    del lane["slowed_to_per_minute"]
    assert line(lane, queued=3).endswith("1 connections"), "from a daemon of the previous release"


def test_what_waits_for_a_source_says_until_when() -> None:
    shown = line(None, queued=3, reason="Source warm-up: …", until="2026-11-23T00:00:00+00:00")
    assert shown == "big/mx.big.example  3 queued  Source warm-up: …  until 2026-11-23T00:00:00+00:00"


def test_a_hold_of_all_mail_names_the_command_that_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"name": "*", "lane": None, "reason": "Held by the operator."} | EMPTY | {"until": "resumed"}
    monkeypatch.setattr(queue, "_send", lambda *arguments: {"destinations": [held], "paused_accounts": []})
    done = CliRunner().invoke(queue.queue_list, [])
    assert done.stdout == "All mail is on hold until `mailsvc queue release`: Held by the operator.\n"


def test_mail_that_is_held_until_it_expires_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    mail = {"address": "a@x.example", "status": "queued", "attempts": 0, "reason": "Paused.", "next_at": "12:00", "expires_at": "12:00"}
    old = {key: value for key, value in mail.items() if key != "expires_at"}  # from a daemon of the previous release
    monkeypatch.setattr(queue, "_send", lambda *arguments: {"waiting": [mail, mail | {"expires_at": "13:00"}, old]})
    said = [line.split(", ")[2] for line in CliRunner().invoke(queue.queue_show, ["ID"]).stdout.splitlines()]
    assert said == ["expires 12:00  Paused.", "next 12:00  Paused.", "next 12:00  Paused."]


def test_resuming_names_the_commands_that_end_what_still_holds_the_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [{"kind": "destination", "name": "*", "reason": "Held."}, {"kind": "account", "name": "7", "reason": "Paused."}]
    monkeypatch.setattr(queue, "_send", lambda *arguments: {"resumed": "x.example", "recipients": 1, "held": held})
    done = CliRunner().invoke(queue.queue_resume, ["--destination", "x.example"])
    assert done.stdout == "resumed: x.example, recipients: 1\n"
    assert done.stderr == (
        "mailsvc: Mail is still on hold:\n  all mail: Held. End this with `mailsvc queue release`.\n"
        "  account 7: Paused. End this with `mailsvc queue resume --account 7`.\n"
    )
