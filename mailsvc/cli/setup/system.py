"""What `mailsvc setup` does to the system as root: the user, the database, the service. Without root it changes nothing here."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import click

from mailsvc.cli.setup.files import Owner

SYSTEMD = Path("/run/systemd/system")
_SECONDS = 120.0  # deadline of a program


def is_root() -> bool:
    return os.getuid() == 0


def owner(user: str, home: Path, say: Callable[[str], None]) -> Owner:
    """The user whom the files belong to; created if root runs the command."""
    if not is_root():
        return Owner()
    try:
        known = pwd.getpwnam(user)
    except KeyError:
        run("useradd", "--system", "--home-dir", str(home), "--no-create-home", "--shell", "/usr/sbin/nologin", user)
        known = pwd.getpwnam(user)
        say(f"created the system user {user}")
    return Owner(known.pw_uid, known.pw_gid)


@contextmanager
def acting_as(user: str, home: Path) -> Iterator[None]:
    """Acts as this user meanwhile, if root runs the command: Postgres and files then see the user that the daemon runs as."""
    if not is_root() or (known := pwd.getpwnam(user)).pw_uid == 0:
        yield
        return
    groups, before = os.getgroups(), os.environ.get("HOME")
    os.environ["HOME"] = str(home)  # libpq looks for certificates there
    os.initgroups(user, known.pw_gid)
    os.setegid(known.pw_gid)
    os.seteuid(known.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.environ["HOME"] = before or "/root"


@contextmanager
def _as_root() -> Iterator[None]:
    """Takes back what `acting_as` gave up."""
    user, group = os.geteuid(), os.getegid()
    os.seteuid(0)
    os.setegid(0)
    try:
        yield
    finally:
        os.setegid(group)
        os.seteuid(user)


def create_database(url: str, say: Callable[[str], None]) -> None:
    """Creates the role and the database if Postgres runs on this machine, listens on a Unix socket and root may use it."""
    found = local_database(url)
    if found is None or not is_root() or shutil.which("createdb") is None:
        return
    role, name = found
    try:
        as_postgres = pwd.getpwnam("postgres")
    except KeyError:
        return
    if _created(as_postgres, "createuser", "--", role):
        say(f"created the database role {role}")
    if _created(as_postgres, "createdb", "--owner", role, "--encoding", "UTF8", "--template", "template0", "--", name):
        say(f"created the database {name}")


def local_database(url: str) -> tuple[str, str] | None:
    """The role and the database of a URL without a password that leads to a Unix socket."""
    parts = urlsplit(url)
    host = unquote(parts.hostname or "") or parse_qs(parts.query).get("host", [""])[0]
    if (host and not host.startswith("/")) or parts.password is not None or not parts.username or len(parts.path) < 2:
        return None
    return unquote(parts.username), unquote(parts.path[1:])


def _created(who: pwd.struct_passwd, *command: str) -> bool:
    """Runs it as this user. False if what it creates exists already."""
    done = _run(command, user=who.pw_uid, group=who.pw_gid, extra_groups=())
    if done.returncode and "already exists" in done.stderr:
        return False
    _check(done)
    return True


def start_service() -> str | None:
    """Starts the service, now and at each boot. Returns why it was not started."""
    if not SYSTEMD.exists():
        return "systemd does not run here"
    if not is_root():
        return "only root can start it"
    with _as_root():
        run("systemctl", "daemon-reload")
        run("systemctl", "enable", "--now", "mailsvc")
    return None


def run(*command: str) -> None:
    """Runs a program. Its error becomes a message."""
    _check(_run(command))


def _run(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}  # its messages are read
    try:
        return subprocess.run(  # noqa: S603  # the words are known, and there is no shell
            command, capture_output=True, text=True, timeout=_SECONDS, cwd="/", check=False, env=environment, **how
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.ClickException(f"{command[0]} failed: {error}") from None


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise click.ClickException(f"{done.args[0]} failed: {' '.join(done.stderr.split())}")
