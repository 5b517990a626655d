"""`mailsvc setup`: from nothing to a verified domain and a delivered mail, with a real daemon, Postgres and DNS server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from click import ClickException
from click.testing import CliRunner
from twisted.internet.threads import deferToThread

from mailsvc.cli import runner
from mailsvc.cli.main import main
from mailsvc.cli.setup import command, contents, system
from mailsvc.cli.setup.answers import DATABASE, Answers, collect
from mailsvc.cli.setup.contents import Places
from mailsvc.cli.setup.files import Files, Owner
from mailsvc.http.gate import FORM
from mailsvc.settings import loading
from mailsvc.settings.audience import Audience
from mailsvc.settings.schema import Http
from tests.cli.test_cli import ROOT
from tests.dnsserver import DnsServer
from tests.end_to_end.proxies import indented
from tests.end_to_end.rig import eventually, free_port, rows

HOST, DOMAIN, OPERATOR = "out.example.com", "example.com", "ann@ops.example"
ANSWERS = Answers(
    HOST, f"https://{HOST}", "postgresql://mailsvc@/mailsvc", OPERATOR, DOMAIN, f"mailsvc <no-reply@{DOMAIN}>", (), "us-east-1"
)
ZONES: dict[str, dict[str, list[str]]] = {
    HOST: {"A": ["198.51.99.7"]},
    DOMAIN: {"NS": [f"ns.{DOMAIN}."]},
    f"ns.{DOMAIN}": {"A": ["127.0.0.1"]},
    "7.99.51.198.in-addr.arpa": {"PTR": [f"{HOST}."]},
    "probe.example": {"MX": ["10 mx.probe.example."]},
    "mx.probe.example": {"A": ["127.0.0.9"]},  # where nobody listens
}


@attrs.frozen
class Server:
    """An empty server: a folder, a database, and variables that keep mailsvc on loopback and away from ports below 1024."""

    folder: Path
    database: str
    dns: DnsServer
    port: int = attrs.field(factory=free_port)
    inbox: int = attrs.field(factory=free_port)

    @property
    def config(self) -> Path:
        return self.folder / "etc/mailsvc.toml"

    @property
    def environment(self) -> dict[str, str]:
        given = {
            "DELIVERY__NAMESERVERS": [self.dns.address],
            "DELIVERY__ALLOWED_NETWORKS": ["127.0.0.0/8"],
            "DELIVERY__MTA_STS": False,
            "DOMAINS__NAMESERVER_PORT": self.dns.port,
            "HTTP__LISTEN": [f"tcp:{self.port}:interface=127.0.0.1"],
            "METRICS__LISTEN": [],
            "SANDBOX__LISTEN": [f"tcp:{self.inbox}:interface=127.0.0.1"],
        }
        variables = {f"MAILSVC_{name}": json.dumps(value) for name, value in given.items()}
        routes = f'{{ "ops.example" = "smtp://127.0.0.1:{self.inbox}" }}'
        inherited = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MAILSVC_SMTP__LISTEN": "{}",
            "MAILSVC_DATABASE__URL": self.database,
            "MAILSVC_DELIVERY__ROUTES": routes,
        }
        return {**inherited, **variables, "MAILSVC_CONTROL__SOCKET": f"/tmp/mailsvc-{os.getpid()}-{self.port}.sock"}

    async def setup(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`mailsvc setup` without questions, as the user that runs the tests."""
        given = ["--host", HOST, "--operator", OPERATOR] if not self.config.exists() else []
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        folders = ["--data", str(self.folder / "data"), "--unit", str(self.folder / "mailsvc.service"), "--user", user]
        command = [sys.executable, "-c", "from mailsvc.cli.main import main; main()", "--config", str(self.config), "setup", "--yes"]
        return await deferToThread(
            lambda: subprocess.run(
                [*command, *given, *folders, "--probe", "probe.example", *words],
                env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
            )
        )  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        twistd = [str(Path(sys.executable).with_name("twistd")), "--nodaemon", "--pidfile=", "mailsvc", "--config", str(self.config)]
        with (self.folder / "daemon.log").open("wb") as log:
            return subprocess.Popen(twistd, env=self.environment, cwd=self.folder, stdout=log, stderr=log)

    def ready(self) -> list[tuple[int]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as answer:
                return [(answer.status,)]
        except OSError:
            return []


@pytest_twisted.async_yield_fixture
async def server(tmp_path: Path, database: str) -> AsyncIterator[Server]:
    from twisted.internet import reactor

    dns = DnsServer(ZONES)
    await dns.start(reactor)
    yield Server(tmp_path, database, dns)
    await dns.stop()


def published(lines: list[str]) -> dict[str, dict[str, list[str]]]:
    """The zones with the records of a zone file."""
    zones = {name: dict(kinds) for name, kinds in ZONES.items()}
    for line in lines:
        if line and not line.startswith(";"):
            name, kind, value = line.split(" ", 2)
            kinds = zones.setdefault(name.rstrip("."), {})
            kinds[kind] = [*kinds.get(kind, []), value] if name.rstrip(".") not in ZONES else kinds.get(kind, [value])
    return zones


def section(text: str, title: str) -> list[str]:
    return text.split(f"{title}", 1)[1].split("\n\n", 1)[0].splitlines()[1:]


@pytest.mark.slow
@pytest_twisted.ensureDeferred
async def test_it_leads_from_an_empty_server_to_a_delivered_mail(server: Server) -> None:
    first = await server.setup()
    assert (first.returncode, first.stderr) == (0, ""), first
    assert loading.load(server.config, server.environment).delivery.ehlo_name == HOST
    modes = {"etc/mailsvc.toml": 0o640, "etc/certbot-hook": 0o755, "data/secret.key": 0o600, "data": 0o700, "etc/tls": 0o700}
    assert {name: (server.folder / name).stat().st_mode & 0o777 for name in modes} == modes
    machine, change = section(first.stdout, "This machine:"), section(first.stdout, "Settings:")
    found = {line.split(":")[0].split(None, 1)[1]: line.split()[0] for line in machine}
    assert found["PTR of 198.51.99.7"] == found["dns"] == "ok" and found["port 25 over IPv4"] == "error"
    assert {"disk", "memory", "open files", "clock of this machine", "incoming port 25", "zen.spamhaus.org for 198.51.99.7"} <= set(found)
    for created in (server.config, server.folder / "data/secret.key", f"the account {DOMAIN}", f"the member {OPERATOR}"):
        assert any(line.startswith(f"created {created}") for line in change), (created, change)
    assert "test mail: Not sent: mailsvc does not run." in first.stdout
    [link] = re.findall(r"https://out\.example\.com/dashboard/sign-in/link\?link=\S+", first.stdout)
    key = (server.folder / "data/secret.key").read_bytes()

    daemon = server.start()
    try:
        server.dns.zones = published((server.folder / "data/dns.zone").read_text().splitlines())
        await deferToThread(eventually, server.ready)
        second = await server.setup("--no-probe")
    finally:
        daemon.terminate()
        daemon.wait(60)
    assert f"ok      test mail: The mail server of {OPERATOR} accepted it." in second.stdout, second.stdout
    assert second.returncode == 0 and link not in second.stdout
    assert not [line for line in section(second.stdout, "Settings:") if not line.startswith(("left ", "checked "))]
    assert (server.folder / "data/secret.key").read_bytes() == key
    entries = [action for (action,) in rows(server.database, "SELECT action FROM audit_entries ORDER BY at")]
    assert entries[:3] == ["account created", "domain added", "member added"]
    assert {"domain verification requested", "key created", "key revoked"} <= set(entries[3:])
    assert rows(server.database, "SELECT status FROM domains") == [("verified",)]


def collected(monkeypatch: pytest.MonkeyPatch, *words: str, typed: str = "") -> Any:
    """What the command would do: the result of reading the options, and the steps. Nothing is done."""
    begun: list[Any] = []
    monkeypatch.setattr(command.runner, "start", lambda settings, work: begun.append(work.__closure__[1].cell_contents))
    done = CliRunner().invoke(main, ["--config", "/nowhere/etc/mailsvc.toml", "setup", *words], input=typed)
    return done, begun[0] if begun else None


def test_it_asks_for_what_is_not_given_until_the_answer_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = f"nohost\n{HOST}\n\nann\n{OPERATOR}\n\nmysql://x\n\n\n\n\n"
    done, steps = collected(monkeypatch, "--source", "192.0.2.10", "--source", "192.0.2.11 out2.example.com", typed=typed)
    assert done.exit_code == 0, done.output
    sources = (f"192.0.2.10 {HOST}", "192.0.2.11 out2.example.com")
    assert steps.answers == attrs.evolve(ANSWERS, database=DATABASE, sources=sources)
    wrong = ("'nohost' is not a domain name.", "Enter an answer: there is no default.", "Expected a URL such as postgresql://")
    assert done.stdout == "" and [message for message in wrong if done.stderr.count(message) != 1] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", HOST], "--operator is needed with --yes."),
        (["--host", "x y", "--operator", OPERATOR], "--host: 'x y' is not a domain name."),
        (["--host", HOST, "--operator", OPERATOR, "--url", "example.com"], "--url: Expected a URL without a path"),
        (["--host", HOST, "--operator", OPERATOR, "--sender", "a@other.example"], f"--sender: Expected an address of {DOMAIN}."),
        (["--host", HOST, "--operator", OPERATOR, "--source", "out"], "--source: 'out' does not begin with an IP address."),
    ],
)
def test_a_wrong_option_is_named(monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    done, _ = collected(monkeypatch, "--yes", *words)
    assert done.exit_code == 2 and message in done.stderr, done.output


def test_a_step_that_fails_is_a_message_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(_: object) -> None:
        (tmp_path / "file").touch()
        Files(tmp_path / "setup.json", Owner(), print).folder(tmp_path / "file/data", 0o700)

    with pytest.raises(SystemExit, match="1"):
        runner._reported(work, None).send(None)  # type: ignore[attr-defined]
    path = tmp_path / "file/data"
    expected = f"mailsvc: {path} cannot be written: Not a directory. Run this command as root, or choose other folders.\n"
    assert capsys.readouterr().err == expected


def test_a_file_that_was_edited_is_not_overwritten(tmp_path: Path) -> None:
    said: list[str] = []
    written, path = Files(tmp_path / "setup.json", Owner(), said.append), tmp_path / "a.toml"
    for text in ("one", "one", "two"):
        written.put(path, text, 0o640)
    assert path.read_text() == "two" and path.stat().st_mode & 0o777 == 0o640
    path.write_text("mine")
    written.put(path, "two", 0o640)
    written.put(path, "three", 0o640)
    assert (path.read_text(), (tmp_path / "a.toml.new").read_text()) == ("mine", "three")
    assert [line.replace(str(path), "FILE") for line in said] == [
        "created FILE",
        "left    FILE: it is up to date",
        "changed FILE",
        "left    FILE: it was edited, and there is nothing new",
        "left    FILE: it was edited. The new version is FILE.new",
    ]
    assert {each.name for each in tmp_path.iterdir()} == {"a.toml", "a.toml.new", "setup.json"}
    other = tmp_path / "other"
    other.write_text("here before the first run")
    written.put(other, "new", 0o644)
    assert (other.read_text(), (tmp_path / "other.new").read_text()) == ("here before the first run", "new")
    with pytest.raises(ClickException, match=r"cannot be written: Not a directory\. Run this command as root"):
        written.put(other / "below", "x", 0o644)


def test_the_settings_are_valid_and_the_next_run_knows_them(tmp_path: Path) -> None:
    places = Places(tmp_path / "mailsvc.toml", tmp_path / "data", "mailsvc")
    given = attrs.evolve(ANSWERS, sources=(f"192.0.2.10 {HOST}",), region="eu-west-1", sender=f'"Ann" <no-reply@{DOMAIN}>')
    places.config.write_text(contents.settings(given, places))
    settings = loading.load(places.config, {})
    assert (settings.region, settings.smtp.postmaster, settings.database.url) == ("eu-west-1", OPERATOR, given.database)
    nothing = dict.fromkeys(("host", "operator", "domain", "database", "url", "sender", "region")) | {"sources": ()}
    assert collect(nothing, places.config, asking=False) == given


def test_the_unit_runs_this_installation(tmp_path: Path) -> None:
    text = contents.unit(Places(Path("/srv/m/mailsvc.toml"), Path("/srv/m/data"), "mail"))
    assert f"ExecStart={Path(sys.executable).parent}/twistd --nodaemon --pidfile= mailsvc --config /srv/m/mailsvc.toml\n" in text
    assert "User=mail\nGroup=mail\n" in text and "ReadWritePaths=/srv/m/data\n" in text and "StateDirectory=" not in text
    packaged = contents.unit(Places(contents.SETTINGS, contents.DATA, "mailsvc"))
    assert packaged == contents.shipped("mailsvc.service").replace("/opt/mailsvc/bin", str(Path(sys.executable).parent))


@pytest.mark.parametrize(
    ("server", "program"), [("nginx", "certbot --nginx"), ("caddy", "certificate-from-caddy"), ("none", "fullchain.pem")]
)
def test_web_servers_get_their_files_and_steps(server: str, program: str, tmp_path: Path) -> None:
    answers, places = attrs.evolve(ANSWERS, url="https://api.example.com"), Places(tmp_path / "mailsvc.toml", tmp_path, "root")
    assert program in " ".join(contents.steps(server, answers, places))
    for name, (text, mode) in contents.web(server, answers, places).items():
        assert (HOST in text and "api.example.com" in text) or mode == 0o755
        if mode == 0o755:
            assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0, name


def test_in_a_container_caddy_gets_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(contents.SETTINGS, contents.DATA, "mailsvc")
    assert "Put the certificate" in " ".join(contents.steps("none", ANSWERS, places))
    monkeypatch.setenv("WAIT_FOR_CERTIFICATE", "/etc/mailsvc/tls/fullchain.pem")
    assert contents.steps("none", ANSWERS, places) == [
        "Run `docker compose up --detach`. Caddy gets the certificate of out.example.com, and mailsvc starts when it is there."
    ]


def test_certbots_hook_copies_the_certificate(tmp_path: Path) -> None:
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    places, live = Places(tmp_path / "mailsvc.toml", tmp_path, user), tmp_path / "live"
    for folder in (live, places.tls):
        folder.mkdir()
    for name in ("fullchain.pem", "privkey.pem"):
        (live / name).write_text(name)
    text, _ = contents.web("nginx", ANSWERS, places)["certbot-hook"]
    subprocess.run(["sh"], input=text, text=True, env={**os.environ, "RENEWED_LINEAGE": str(live)}, check=True)
    assert {each.name: each.stat().st_mode & 0o777 for each in places.tls.iterdir()} == {"fullchain.pem": 0o600, "privkey.pem": 0o600}


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (DATABASE, ("mailsvc", "mailsvc")),
        ("postgresql://me@%2Frun%2Fpostgresql/mail%20db", ("me", "mail db")),
        ("postgresql://me@db.example/mailsvc", None),
        ("postgresql://me:secret@/mailsvc?host=/run/postgresql", None),
        ("postgresql:///mailsvc", None),
    ],
)
def test_only_a_local_database_is_created(url: str, found: tuple[str, str] | None) -> None:
    assert system.local_database(url) == found


@pytest.mark.parametrize(
    ("server", "file", "page", "begin", "end"),
    [
        ("nginx", "nginx.conf", "operations.md", "upstream mailsvc {", "    END"),
        ("caddy", "Caddyfile", "reverse-proxy.md", "api.example.com {", "For"),
    ],
)
def test_the_settings_of_the_web_server_are_those_of_the_documentation(server: str, file: str, page: str, begin: str, end: str) -> None:
    """The documentation's are tried with the real programs: end_to_end/test_reverse_proxy."""
    answers = attrs.evolve(ANSWERS, host="api.example.com", url="https://api.example.com")
    text, _mode = contents.web(server, answers, Places(Path("/etc/mailsvc/mailsvc.toml"), Path("/var/lib/mailsvc"), "mailsvc"))[file]
    written = [line for line in text.splitlines() if not line.startswith("#")]
    assert written == indented(page, begin, end).rstrip().splitlines()


@pytest.mark.parametrize(
    "file", ["mailsvc/cli/setup/contents.py", "docs/operations.md", "docs/reverse-proxy.md", "etc/container/Caddyfile"]
)
def test_every_web_server_accepts_the_largest_upload(file: str) -> None:
    found = [int(size) << 20 for size in re.findall(r"max(?:_body)?_size (\d+)[mM]", (ROOT / file).read_text("utf-8"))]
    assert found and min(found) >= max(Audience().import_size + FORM, Http().body_limit)
