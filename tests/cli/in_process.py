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
from mailsvc.runtime.database import Database
from mailsvc.runtime.privacy import open_eraser
from mailsvc.settings.privacy import Privacy
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.pool import Pool
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
    """Opening the database, starting a reactor and logging are left out; errors and exit statuses are real."""

    config: Path
    encryption: Encryption
    _started: list[Any] = attrs.field(factory=list)

    @classmethod
    def of(cls, pool: Pool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
        from twisted.internet import reactor

        config = Command(folder, pool.dsn).config
        commands = cls(config, Encryption.load(folder / "secret.key"))
        bodies = BodyKeys(pool, reactor, commands.encryption, None)
        database = Database("", pool, commands.encryption, None, open_eraser(pool, reactor, commands.encryption, Privacy()), bodies)

        async def opened(*arguments: Any, **named: Any) -> Database:
            return database

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
        out, messages, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(messages):
            try:
                work: Deferred[None] = self._started.pop()(reactor)
                await work
            except SystemExit as exit:
                status = int(exit.code or 0)
        return Done(status, out.getvalue(), messages.getvalue())

    async def prints(self, *words: str) -> Done:
        done = await self(*words)
        assert done.status == 0, done
        return done

    async def refuses(self, *words: str, status: int = 1) -> str:
        done = await self(*words)
        assert (done.status, done.output) == (status, ""), done
        return done.messages.strip()
