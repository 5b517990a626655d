"""The log observer: writes events as JSON lines or text, from a level on, without secrets."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import orjson
from twisted.logger import ILogObserver, LogEvent, LogLevel, eventAsText, formatEvent
from zope.interface import implementer

from mailsvc.settings import schema
from mailsvc.settings.reader import SettingsError

# The last line of defense: whatever looks like a secret is cut short, whichever module logged it. A pattern is only searched for in texts
# that contain its word, in lower case: few lines do.
_CREDENTIALS = re.compile(r"(?i)\b(bearer|basic|password=)(\s*+)[A-Za-z0-9+/=_.~-]{6,}+"), r"\1\2…"
_SECRETS = (
    ("ms_", re.compile(r"\bms_[A-Za-z0-9_]{6,}"), "ms_…"),
    (
        "-----begin ",
        re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|$)", re.DOTALL),
        "(a private key)",
    ),
    ("://", re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}+://[^\s:/@]*+):[^\s@/]++@"), r"\1:…@"),
    *((word, *_CREDENTIALS) for word in ("bearer", "basic", "password=")),
)

_ORDER = (LogLevel.debug, LogLevel.info, LogLevel.warn, LogLevel.error, LogLevel.critical)


def without_secrets(text: str) -> str:
    """Cuts everything short that looks like a secret."""
    lower = text.lower()
    for word, pattern, shown in _SECRETS:
        if word in lower:
            text = pattern.sub(shown, text)
    return text


def severity(event: LogEvent) -> int:
    """Returns an event's level as a number. Events of libraries at `info` count as `debug`."""
    level = event.get("log_level") or LogLevel.info
    own = str(event.get("log_namespace", "")).startswith(("mailsvc", "stdout", "stderr"))
    return _ORDER.index(LogLevel.debug if level is LogLevel.info and not own else level)


def as_json(event: LogEvent) -> str:
    """Formats an event as an object: time, level, where, text, the event's own keys, and a failure's traceback."""
    line: dict[str, Any] = {
        "time": _moment(event).isoformat(timespec="milliseconds"),
        "level": (event.get("log_level") or LogLevel.info).name,
        "where": str(event.get("log_namespace", "")),
        "text": _formatted(event),
    }
    own = {key: value for key, value in event.items() if not key.startswith("log_") and key not in _LEGACY and key not in line}
    line |= {key: value if isinstance(value, str | int | float | bool | None) else str(value) for key, value in own.items()}
    if "log_failure" in event:
        line["traceback"] = event["log_failure"].getTraceback()
    return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def as_text(event: LogEvent) -> str:
    """Formats an event as a line for people, followed by a failure's traceback."""
    level = (event.get("log_level") or LogLevel.info).name
    text = eventAsText(event, includeTimestamp=False, includeSystem=False) if "log_failure" in event else _formatted(event)
    return f"{_time_of_day(int(event.get('log_time', 0.0)))} {level:<5} {text}"


@lru_cache(1)
def _time_of_day(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S}"


def _formatted(event: LogEvent) -> str:
    """An event's text. Almost all formats are those of `str.format`, which is faster than Twisted's."""
    form = event.get("log_format")
    if isinstance(form, str) and "()" not in form and "log_flattened" not in event:
        with contextlib.suppress(Exception):  # for example because a value is missing, which Twisted describes
            return form.format_map(event)
    return formatEvent(event)


class Lines(Protocol):
    """Where lines are written."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


@implementer(ILogObserver)
class Observer:
    """Writes events from a level on, one per line."""

    def __init__(self, out: Lines, *, form: str, level: str) -> None:
        self._out = out
        self._write = {"json": as_json, "text": as_text}[form]
        self._min_severity = _ORDER.index(LogLevel.lookupByName(level))

    def __call__(self, event: LogEvent) -> None:
        """Writes an event. Must never raise: an event that cannot be formatted is replaced by a line that says so."""
        if severity(event) < self._min_severity:
            return
        try:
            line = without_secrets(self._write(event))
        except Exception as error:  # for example from a value's __str__
            line = f"A log event of {event.get('log_namespace')} cannot be formatted: {type(error).__name__}"
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except (OSError, ValueError):
            return  # the pipe is closed or the disk is full: delivery continues without a log


class WatchedFile:
    """A log file that is opened again, before the next line, when it was moved or deleted: logrotate needs no signal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, text: str) -> object:
        with contextlib.suppress(OSError):  # if it cannot be opened, the former one stays in use
            if self._moved():
                former, self._file = self._file, self._path.open("a", encoding="utf-8")
                former.close()
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()

    def _moved(self) -> bool:
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return True


def observer(log: schema.Log) -> Observer:
    """Returns the observer for the settings in [log]. Raises SettingsError."""
    try:
        out: Lines | None = WatchedFile(log.file) if log.file else sys.__stdout__
    except OSError as error:
        raise SettingsError(f"The setting log.file is {log.file}, which cannot be written: {error.strerror}.") from None
    assert out is not None, "twistd always has standard output"
    return Observer(out, form=log.format, level=log.level)


def _moment(event: LogEvent) -> datetime:
    return datetime.fromtimestamp(float(event.get("log_time", 0.0)), UTC)


_LEGACY = frozenset({"message", "time", "system", "isError", "format", "failure", "why", "printed", "log_text"})
