"""Which system user runs the embedded Postgres. It refuses to run as root, so root starts it as another user."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Any

import attrs

ACCOUNTS = ("mailsvc", "postgres", "nobody")  # tried in this order as root


class EmbeddedError(Exception):
    """Why the embedded Postgres cannot run, in a sentence for the operator."""


@attrs.frozen
class Owner:
    """A user. `groups` are the only groups of the server process."""

    name: str
    uid: int
    gid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, account: pwd.struct_passwd) -> Owner:
        return cls(account.pw_name, account.pw_uid, account.pw_gid, frozenset({account.pw_gid}))

    @property
    def switched(self) -> bool:
        """Whether processes must switch to this user."""
        return self.uid != os.geteuid()

    def process(self) -> dict[str, Any]:
        """Arguments for subprocess."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switched else {}


def owner_for(data: Path) -> Owner:
    """The current user. As root: the owner of the data, or the first of `ACCOUNTS` that exists."""
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
    raise EmbeddedError(f"As root, the embedded Postgres runs as one of the users {', '.join(ACCOUNTS)}, but none of them exists.")


def _account(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(f"The user with ID {uid} has no name (getpwuid), which Postgres needs to create a cluster.") from None


def reachable(path: Path, owner: Owner) -> bool:
    """Whether `owner` may enter every folder above `path`, and `path` itself if it is a folder."""
    if not owner.switched:
        return True
    folders = [folder for folder in (path, *path.parents) if folder.is_dir()]
    return all(_may_enter(folder.stat(), owner) for folder in folders)


def _may_enter(info: os.stat_result, owner: Owner) -> bool:
    if info.st_uid == owner.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid in owner.groups:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)
