"""Which user of the system runs the embedded Postgres. The server refuses to run as root, so root lends it another user."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Any

import attrs

ACCOUNTS = ("mailsvc", "postgres", "nobody")  # tried in this order when we are root


class EmbeddedError(Exception):
    """Why there is no embedded Postgres, in a sentence for the operator."""


@attrs.frozen
class Owner:
    """A user by name and numbers; `groups` are all that the server process will have."""

    name: str
    uid: int
    gid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, account: pwd.struct_passwd) -> Owner:
        return cls(account.pw_name, account.pw_uid, account.pw_gid, frozenset({account.pw_gid}))

    @property
    def lent(self) -> bool:
        """Whether processes must change to this user."""
        return self.uid != os.geteuid()

    def process(self) -> dict[str, Any]:
        """Arguments for subprocess."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.lent else {}


def owner_for(data: Path) -> Owner:
    """Ourselves; or, as root, who owns the data already, else the first account of `ACCOUNTS` that exists."""
    if os.geteuid() != 0:
        account = _account(os.geteuid())
        return Owner(account.pw_name, account.pw_uid, os.getegid(), frozenset({os.getegid(), *os.getgroups()}))
    if data.exists() and data.stat().st_uid != 0:
        return Owner.of(_account(data.stat().st_uid))
    for name in ACCOUNTS:
        try:
            return Owner.of(pwd.getpwnam(name))
        except KeyError:
            continue
    raise EmbeddedError(f"As root the embedded Postgres runs as one of the users {', '.join(ACCOUNTS)}; none of them exists.")


def _account(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(f"The user with id {uid} has no name (getpwuid), which Postgres needs to make a cluster.") from None


def reachable(path: Path, owner: Owner) -> bool:
    """Whether `owner` may pass through every folder above `path`, and `path` itself when it is a folder."""
    if not owner.lent:
        return True
    folders = [folder for folder in (path, *path.parents) if folder.is_dir()]
    return all(_passes(folder.stat(), owner) for folder in folders)


def _passes(info: os.stat_result, owner: Owner) -> bool:
    if info.st_uid == owner.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid in owner.groups:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)
