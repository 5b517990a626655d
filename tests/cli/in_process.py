"""Runs commands in this process, with the test's database and reactor: faster than a process for each."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from twisted.internet.defer import Deferred

from mailsvc.cli import runner
from mailsvc.cli.main import main
from mailsvc.runtime.database import Database, wrong_keys
from mailsvc.runtime.privacy import erase_again, open_eraser
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.encryption.body_key_files import BodyKeyFiles
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.restore_guard import RestoreGuard
from tests.cli.test_cli import Command


@attrs.frozen
class Done:
    status: int
    output: str
    messages: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.output)


@attrs.define(eq=False)
class InProcess:
    """Connecting to the database, starting a reactor and logging are left out; settings, keys, errors and exit statuses are real."""

    config: Path
    encryption: Encryption
    _started: list[Any] = attrs.field(factory=list)

    @classmethod
    def of(cls, pool: Pool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
        config = Command(folder, pool.dsn).config
        commands = cls(config, Encryption.load(folder / "secret.key"))

        async def opened(reactor: Any, settings: Settings, *arguments: Any, checking: bool = True, **named: Any) -> Database:
            return await database_of(pool, reactor, settings, checking=checking)

        monkeypatch.setattr(runner, "open_database", opened)
        monkeypatch.setattr(runner, "prepare", lambda *arguments: None)
        monkeypatch.setattr(runner.globalLogBeginner, "beginLoggingTo", lambda *arguments, **named: None)
        monkeypatch.setattr(runner, "react", lambda main: commands._started.append(main))
        return commands

    async def __call__(self, *words: str) -> Done:
        from twisted.internet import reactor

        parsed = CliRunner().invoke(main, ["--config", str(self.config), *words])
        if parsed.exception is not None and not isinstance(parsed.exception, SystemExit):
            raise parsed.exception
        if not self._started:
            return Done(parsed.exit_code, parsed.stdout, parsed.stderr)
        content = io.BytesIO()  # messages are printed as bytes
        out, messages, status = io.TextIOWrapper(content, "utf-8", write_through=True), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(messages):
            try:
                work: Deferred[None] = self._started.pop()(reactor)
                await work
            except SystemExit as exit:
                status = int(exit.code or 0)
        return Done(status, content.getvalue().decode(), messages.getvalue())

    async def prints(self, *words: str) -> Done:
        done = await self(*words)
        assert done.status == 0, done
        return done

    async def printed(self, *words: str) -> str:
        """The output of a command that writes nothing to standard error."""
        done = await self.prints(*words)
        assert done.messages == "", done
        return done.output.strip()

    async def refuses(self, *words: str, status: int = 1) -> str:
        done = await self(*words)
        assert (done.status, done.output) == (status, ""), done
        return done.messages.strip()


async def database_of(pool: Pool, reactor: Any, settings: Settings, *, checking: bool) -> Database:
    """As `open_database` opens it, with the keys and the erasure journal of the settings."""
    encryption, folder = Encryption.load(settings.secrets.key_file), settings.secrets.body_keys
    bodies = BodyKeys(pool, reactor, encryption, None if folder is None else BodyKeyFiles(folder))
    erasing = open_eraser(pool, reactor, encryption, settings.privacy, bodies)
    if checking and (wrong := await wrong_keys(pool, settings, encryption.keys)) is not None:
        raise SettingsError(wrong)
    await erase_again(erasing, restored=False)
    guard = RestoreGuard(pool, settings.database.restore_marker, settings.region)
    return Database("", pool, encryption, guard, erasing, bodies)
