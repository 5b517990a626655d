"""Writes the files of an installation. A file that somebody edited is never overwritten: the new version goes beside it, as NAME.new.

How it knows: a record of what it wrote last, by hash. Secrets are not in these files: their own are only ever created.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs
import click


@attrs.frozen
class Owner:
    """Whom files belong to. None: whoever runs the command."""

    uid: int | None = None
    gid: int | None = None

    def take(self, path: Path, *, whole: bool = False) -> None:
        """Gives the file to the group; if `whole`, to the user too."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid if whole else -1, self.gid)


@attrs.frozen
class Files:
    """`record`: the file with the hashes. `say`: prints a line about each change."""

    record: Path
    owner: Owner
    say: Callable[[str], None]

    def folder(self, path: Path, mode: int, *, whole: bool = False) -> None:
        """Creates a folder. An existing one keeps its mode and owner."""
        if path.is_dir():
            return
        try:
            path.mkdir(parents=True)
            path.chmod(mode)
            self.owner.take(path, whole=whole)
        except OSError as error:
            raise _failed(path, error) from None
        self.say(f"created {path}")

    def put(self, path: Path, text: str, mode: int) -> None:
        """Writes a file, unless it was edited since it was written last."""
        written = self._written()
        new, last = _digest(text), written.get(str(path))
        try:
            now = _digest(path.read_text("utf-8")) if path.exists() else None
            if now == new:
                self.say(f"left    {path}: it is up to date")
            elif now is None or now == last:
                self._replace(path, text, mode)
                self.say(f"{'created' if now is None else 'changed'} {path}")
            elif new == last:
                self.say(f"left    {path}: it was edited, and there is nothing new")
                return
            else:
                beside = path.with_name(f"{path.name}.new")
                self._replace(beside, text, mode)
                self.say(f"left    {path}: it was edited. The new version is {beside}")
            if new != last:
                self._replace(self.record, json.dumps({**written, str(path): new}, indent=2) + "\n", 0o640)
        except OSError as error:
            raise _failed(path, error) from None

    def _written(self) -> dict[str, str]:
        try:
            found = json.loads(self.record.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return dict(found) if isinstance(found, dict) else {}

    def _replace(self, path: Path, text: str, mode: int) -> None:
        """Atomically, and never readable by others in between."""
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).chmod(mode)
            self.owner.take(Path(temporary))
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _failed(path: Path, error: OSError) -> click.ClickException:
    return click.ClickException(f"{path} cannot be written: {error.strerror}. Run this command as root, or choose other folders.")
