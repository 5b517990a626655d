"""Logs: one line per event, from a level on, without secrets."""

from __future__ import annotations

import io
import json

import pytest
from twisted.logger import Logger, LogLevel

from mailsvc.monitoring.logs import Observer, observer, without_secrets
from mailsvc.settings import schema
from mailsvc.settings.reader import SettingsError

KEY = "ms_" + "a1B2c3D4e5F6g7H8" * 2


def logged(write, form="json", level="info", namespace="mailsvc.intake"):
    out = io.StringIO()
    write(Logger(namespace=namespace, observer=Observer(out, form=form, level=level)))
    return out.getvalue()


def test_an_event_is_one_json_object_with_its_keys():
    line = logged(lambda log: log.info("queued {email_id}\nfor {count}", email_id="e-1", count=3))
    assert line.count("\n") == 1
    event = json.loads(line)
    assert event.pop("time").endswith("+00:00")
    assert event == {"level": "info", "where": "mailsvc.intake", "text": "queued e-1\nfor 3", "email_id": "e-1", "count": 3}


def test_the_text_format_is_one_line():
    assert logged(lambda log: log.warn("slow {host}", host="mx"), form="text").endswith(" warn  slow mx\n")


def test_a_failure_is_logged_with_its_traceback():
    def write(log):
        try:
            raise LookupError("gone")
        except LookupError:
            log.failure("no {what}", what="luck")

    event = json.loads(logged(write))
    assert event["level"] == "critical" and event["text"] == "no luck"
    assert "LookupError: gone" in event["traceback"]
    assert "LookupError: gone" in logged(write, form="text")


def test_a_format_can_call_a_value_and_use_its_attributes():
    text = logged(lambda log: log.info("{what()} {host.name} {count:03}", what=lambda: "called", host=LogLevel.info, count=7), form="text")
    assert text.endswith(" info  called info 007\n")


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_event_without_a_value_that_its_format_names_says_so(form):
    assert "Unable to format event" in logged(lambda log: log.info("queued {email_id}", count=3), form=form)


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warn", 2), ("error", 1)])
def test_events_below_the_level_are_left_out(level, count):
    def write(log):
        for one in (LogLevel.debug, LogLevel.info, LogLevel.warn, LogLevel.error):
            log.emit(one, "x")

    assert logged(write, level=level).count("\n") == count


def test_info_events_of_libraries_count_as_debug():
    assert logged(lambda log: log.info("Starting factory"), namespace="twisted.internet") == ""
    assert logged(lambda log: log.info("Starting factory"), namespace="twisted.internet", level="debug") != ""
    assert logged(lambda log: log.warn("deprecated"), namespace="twisted.internet") != ""


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_is_written_wherever_it_appears(form):
    def write(log):
        log.info(f"key {KEY}")
        log.info("key {key}", key=KEY)
        log.info("headers {headers}", headers={"authorization": f"Bearer {KEY}"})
        log.info("-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----")
        try:
            raise ValueError(f"bad key {KEY}")
        except ValueError:
            log.failure("refused")

    written = logged(write, form=form)
    assert KEY[3:] not in written and "MIIEvQ" not in written
    assert written.count("ms_…") >= 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://mailsvc:hunter2@db/x", "postgresql://mailsvc:…@db/x"),
        ("Basic bWFpbHN2Yzpr", "Basic …"),
        ("BEARER bWFpbHN2Yzpr and Password=hunter22", "BEARER … and Password=…"),
        ("forms_of_address are items_of_interest", "forms_of_address are items_of_interest"),
        ("http://localhost:8025/emails for a@b.example", "http://localhost:8025/emails for a@b.example"),
    ],
)
def test_what_looks_like_a_secret_is_cut(text, shown):
    assert without_secrets(text) == shown


def test_a_value_that_cannot_be_formatted_is_reported_in_one_line():
    class Bad:
        def __str__(self):
            raise RuntimeError

    assert "mailsvc.intake" in logged(lambda log: log.info("x", value=Bad()))


def test_a_closed_output_raises_no_error():
    out = io.StringIO()
    out.close()
    Logger(namespace="mailsvc", observer=Observer(out, form="text", level="info")).info("x")


def test_a_log_file_that_was_rotated_is_opened_again(tmp_path):
    file = tmp_path / "mailsvc.json"
    log = Logger(namespace="mailsvc.intake", observer=observer(schema.Log(file=file, format="text")))
    log.info("first")
    file.rename(tmp_path / "mailsvc.json.1")  # as logrotate does, before it may create the new one
    log.info("second")
    file.rename(tmp_path / "mailsvc.json.2")
    file.touch()
    log.info("third")
    kept = [path.read_text().split()[-1] for path in (tmp_path / "mailsvc.json.1", tmp_path / "mailsvc.json.2", file)]
    assert kept == ["first", "second", "third"]


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path):
    file = tmp_path / "none" / "mailsvc.log"
    with pytest.raises(SettingsError, match=rf"The setting log\.file is {file}, which cannot be written: No such file or directory\."):
        observer(schema.Log(file=file))


def test_a_log_file_that_cannot_be_opened_again_stays_in_use(tmp_path):
    file = tmp_path / "mailsvc.json"
    log = Logger(namespace="mailsvc.intake", observer=observer(schema.Log(file=file, format="text")))
    file.rename(tmp_path / "mailsvc.json.1")
    file.mkdir()
    log.info("kept")
    assert "kept" in (tmp_path / "mailsvc.json.1").read_text()


def test_a_line_of_text_begins_with_the_time_of_day():
    out = io.StringIO()
    write = Observer(out, form="text", level="info")
    for seconds in (86_400 + 3661.9, 3662.0):
        write({"log_time": seconds, "log_level": LogLevel.info, "log_namespace": "mailsvc", "log_format": "x"})
    assert out.getvalue() == "01:01:01 info  x\n01:01:02 info  x\n"
