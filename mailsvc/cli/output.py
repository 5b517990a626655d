"""What several commands share: `--json`, durations, times, a name that fits several things, files that are written."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

import click
import orjson

from mailsvc.accounts.onboarding import Refused

T = TypeVar("T")

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
ACCOUNT = click.option("--account", required=True, help="ID, number or name of the account.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class ExistingFile(click.Path):
    """A file that exists. click says that it does not if the user of the command may not enter its folder, such as that of root."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with suppress(FileNotFoundError, IsADirectoryError):
            try:
                Path(value).open("rb").close()
            except PermissionError:
                self.fail(f"the user {_user()}, who runs this command, cannot read {str(value)!r}: copy it to another folder", param, ctx)
        return super().convert(value, param, ctx)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def print_json(value: object) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def result(as_json: bool, sentence: str, **values: object) -> None:
    """Print what was done: a sentence, or the values as JSON."""
    if as_json:
        print_json(values)
    else:
        click.echo(sentence)


def note(sentence: str) -> None:
    """A remark beside the result, to standard error."""
    click.echo(f"mailsvc: {sentence}", err=True)


def duration(_context: Any, _parameter: Any, value: str | None) -> float | None:
    """A callback of click: seconds from a duration such as 30m."""
    if value is None:
        return None
    number, unit = (value[:-1], value[-1]) if value[-1:] in _UNITS else (value, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e9:
        raise click.BadParameter("expected a duration such as 90s, 30m, 2h or 1d")
    return seconds


def name_of(most: int) -> Callable[[click.Context, click.Parameter, str], str]:
    """A callback of click: a name that fits into one line of a page or an email."""

    def name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        found = " ".join(value.split())
        if not found or len(found) > most or not found.isprintable():
            raise click.BadParameter(f"expected 1 to {most} printable characters")
        return found

    return name


def moment(at: datetime | None, never: str = "-") -> str:
    return never if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def the_only(found: Sequence[T], none: str, several: str, lines: Sequence[str]) -> T:
    """The one that was found. Raises Refused, with a list if there are several."""
    if not found:
        raise Refused(none)
    if len(found) > 1:
        raise Refused("\n".join([several, *lines]))
    return found[0]


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that only its owner can read, and that has its name once it is whole. Raises Refused."""
    try:
        if os.path.lexists(path):
            raise Refused(f"{path} already exists. Choose another file with --output.")
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)  # of a command that was killed
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                yield file
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}.") from None
