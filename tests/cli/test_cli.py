"""The `mailsvc` command against a real database: output, error messages and exit status."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import psycopg2
import pytest
from click.testing import CliRunner
from psycopg2.extensions import make_dsn

from mailsvc.cli.main import main
from mailsvc.store.encryption import key_file
from tests.cli.groups import commands_of

ROOT = Path(__file__).parents[2]


class Command:
    def __init__(self, folder: Path, database: str) -> None:
        self.config, self.folder, self.database = folder / "mailsvc.toml", folder, database
        self.write(allow_trust=True)
        key_file.make(folder / "secret.key")

    def write(self, *, allow_trust: bool) -> None:
        self.config.write_text(
            f'base_url = "https://api.example.com"\n[database]\nurl = "{self.database}"\n[delivery]\nehlo_name = "out.example.net"\n'
            "[smtp]\nlisten = {}\n"
            f'[secrets]\nkey_file = "{self.folder}/secret.key"\nbody_keys = "{self.folder}/body-keys"\n'
            '[regions.us-east-1]\nhost = "out.example.net"\n[regions.eu-west-1]\nhost = "out.eu.example.net"\n'
            f"[domains]\nallow_trust = {str(allow_trust).lower()}\n"
        )

    def __call__(self, *words: str, closed: bool = False) -> subprocess.CompletedProcess[str]:
        """`closed`: nobody reads standard output."""
        reader, writer = os.pipe() if closed else (subprocess.DEVNULL, subprocess.PIPE)
        if closed:
            os.close(reader)
        try:
            return subprocess.run(
                [sys.executable, "-c", "from mailsvc.cli.main import main; main()", "--config", str(self.config), *words],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            if closed:
                os.close(writer)

    def prints(self, *words: str) -> str:
        done = self(*words)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.strip()

    def refuses(self, *words: str, status: int = 1) -> str:
        done = self(*words)
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr
        return done.stderr.strip()


@pytest.fixture
def mailsvc(tmp_path: Path, database: str) -> Command:
    return Command(tmp_path, database)


def test_account_domain_and_key_are_created(mailsvc: Command, database: str) -> None:
    account = mailsvc.prints("account", "create", "Example Ltd")
    assert re.fullmatch(r"[0-9a-f-]{36}", account)

    records = mailsvc.prints("domain", "add", "Shop.Example.com.", "--account", "Example Ltd").splitlines()
    assert records[0] == "send.shop.example.com. MX 10 out.example.net."
    assert records[1] == 'send.shop.example.com. TXT "v=spf1 a:out.example.net ~all"'
    assert [re.search(r"k=\w+", record)[0] for record in records[2:4]] == ["k=rsa", "k=ed25519"]
    assert re.fullmatch(r'_dmarc\.shop\.example\.com\. TXT "v=DMARC1; p=none; rua=mailto:r-\w+@send\.shop\.example\.com;"', records[4])

    trusted = mailsvc("domain", "trust", "shop.example.com", "--account", account)
    assert trusted.stdout == "shop.example.com can send.\n"
    assert "shop.example.com is trusted without DNS records" in trusted.stderr

    key = mailsvc.prints("key", "create", "--account", "1", "--permission", "sending_access", "--domain", "shop.example.com")
    assert re.fullmatch(r"ms_[A-Za-z0-9]{38}", key)
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT a.name, k.permission, d.name, d.trusted_at IS NOT NULL FROM api_keys k"
            " JOIN accounts a ON a.id = k.account_id JOIN domains d ON d.id = k.domain_id"
        )
        assert cursor.fetchall() == [("Example Ltd", "sending_access", "shop.example.com", True)]
        cursor.execute("SELECT id::text FROM api_keys")
        assert mailsvc.prints("key", "list", "--account", "1") == f"{cursor.fetchall()[0][0]}  {key[:9]}…  sending_access  by the operator"


def test_commands_work_before_the_first_start(tmp_path: Path, postgres: str, administer: Callable[..., None]) -> None:
    name = f"mailsvc_empty_{os.getpid()}"
    administer(postgres, f"CREATE DATABASE {name}")
    try:
        mailsvc = Command(tmp_path, make_dsn(postgres, dbname=name))
        account = mailsvc("account", "create", "Example Ltd").stdout.strip()
        assert mailsvc.prints("domain", "add", "example.com", "--account", account).startswith("send.example.com. MX")
    finally:
        administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_wrong_command_or_setting_is_reported(tmp_path: Path) -> None:
    mailsvc = Command(tmp_path, "postgresql:///unused")

    def printed(*words: str, status: int = 1) -> str:
        done = CliRunner().invoke(main, ["--config", str(mailsvc.config), *words])
        assert done.exit_code == status, done
        return done.output

    assert "No such command" in mailsvc.refuses("acount", status=2)
    mailsvc.config.write_text("[database]\nurll = 'x'\n")
    assert "The setting database.urll does not exist." in mailsvc.refuses("account", "create", "x")
    assert printed("account", "create", "--help", status=0).startswith("Usage: ")
    mailsvc.write(allow_trust=True)
    mailsvc.config.write_text(mailsvc.config.read_text() + f'[log]\nfile = "{mailsvc.folder}/none/x.log"\n')
    assert "none/x.log, which cannot be written" in printed("account", "create", "x")
    mailsvc.config.unlink()
    assert "cannot be read: No such file or directory." in printed("account", "create", "x")
    assert "Create an account." in printed("account", "create", "--help", status=0)


def test_groups_of_commands_show_their_help_without_settings(tmp_path: Path) -> None:
    def printed(*words: str) -> str:
        return CliRunner().invoke(main, ["--config", str(tmp_path / "none.toml"), *words]).output

    for group in [name for name, command in commands_of(main).items() if isinstance(command, click.Group)]:
        shown = printed(group)
        assert f"{group} [OPTIONS] COMMAND" in shown and "cannot be read" not in shown, shown
    assert "No such command 'creat'" in printed("account", "creat")
    assert "cannot be read: No such file or directory." in printed("account", "list")


def test_a_closed_output_ends_a_command_silently(mailsvc: Command) -> None:
    mailsvc.prints("account", "create", "One")
    for words in (("account", "show", "One"), ("account", "show", "One", "--json")):
        done = mailsvc(*words, closed=True)
        assert (done.returncode, done.stderr) == (141, "")


def test_an_unreachable_database_is_reported_without_secrets(mailsvc: Command) -> None:
    mailsvc.database = "postgresql://u:hunter2@127.0.0.1:1/x"
    mailsvc.write(allow_trust=False)
    message = mailsvc.refuses("account", "create", "x")
    assert message.startswith("mailsvc: The database cannot be reached:")
    assert "hunter2" not in message
