"""The commands of README.md, and those of the tutorial that need `make run`, as they are written.

A port that is busy on this machine is replaced by another one. `ms_…`, ID and ACCOUNT are what a reader puts there. Not run here:
`make test`, which runs this, and `make wheel` with its `pip install` (test_install). `make try-readme` runs all pages in a clean Debian 12.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etc.guide.pages import bare, blocks, programs
from tests.end_to_end.first_server import INSTALLED, FirstServer, environment, run, with_free_ports
from tests.end_to_end.rig import PROJECT, eventually, free_port, toml

README = (PROJECT / "README.md").read_text("utf-8")
TWO_COMMANDS, READ_INBOX, LIBRARY, PATH_OF_AN_EMAIL, SWAKS, PRODUCTION = blocks(README)  # each block is run, but the diagram

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def code(page: str, language: str) -> list[str]:
    return programs((PROJECT / f"docs/tutorial/{page}.md").read_text("utf-8"), language)


RUN, VARIABLES = code("first-email", "console")
LIST_EMAILS = 'curl --silent --fail "$BASE_URL/emails" -H "Authorization: Bearer $API_KEY"'
[SHOW_DOMAIN] = code("first-domain", "console")


@pytest.fixture(scope="module")
def server() -> Iterator[FirstServer]:
    server = FirstServer()
    try:
        server.start(RUN.strip())
        yield server
    finally:
        server.remove()


def next_steps(server: FirstServer) -> list[str]:
    """What follows the explanation in each of the lines that say what to do next."""
    return re.findall(r"^  \d\. .*:  (.+)$", server.printed, re.MULTILINE)


def inbox(server: FirstServer, subject: str) -> str:
    """The message with this subject, once README.md's commands show it in the sandbox inbox."""
    listed, read = [line.replace("ms_…", server.key) for line in READ_INBOX.splitlines()]

    def found() -> list[Any]:
        messages = [json.loads(server.run(read.replace("/ID", f"/{each['id']}")))["raw"] for each in json.loads(server.run(listed))["data"]]
        return [message for message in messages if f"\nSubject: {subject}\r\n" in message]

    return str(eventually(found)[0])


def test_the_two_commands_are_those_of_the_makefile() -> None:
    assert re.findall(r"^(make \w+) {2,}", TWO_COMMANDS, re.MULTILINE) == [RUN.strip(), "make test"]
    assert (PROJECT / "Makefile").read_text("utf-8").count("\nrun: ") == 1


def test_make_run_prints_what_to_do_next_and_each_of_it_works(server: FirstServer) -> None:
    url = with_free_ports("http://localhost:8025", server.ports)
    assert f"  mailsvc    {url}\n" in server.printed and f"  API key    {server.key}\n" in server.printed
    sign_in, send, read, library = next_steps(server)
    server.run(f"curl --silent --show-error --fail {sign_in}")
    server.run(f"{send} --silent --show-error --fail")
    assert "<p>It works.</p>" in inbox(server, "Hello")
    assert json.loads(server.run(f"{read} --silent --show-error --fail"))["data"]
    assert library == LIBRARY.splitlines()[1].replace("http://localhost:8025", url).replace("ms_…", server.key)


def test_a_second_make_run_says_where_the_first_one_is(server: FirstServer) -> None:
    said = server.run(f"make {' '.join(INSTALLED)} run", status=2)
    assert f"mailsvc is already running at {with_free_ports('http://localhost:8025', server.ports)}." in said


def test_a_client_library(server: FirstServer) -> None:
    script = server.folder / "your_script.py"
    mail = {"from": "hello@mailsvc.example", "to": "you@example.net", "subject": "From a library", "text": "Hi"}
    script.write_text(f"import resend\n\nresend.Emails.send({mail!r})\n")
    server.run(LIBRARY.replace("ms_…", server.key))
    assert inbox(server, "From a library").endswith("\r\n\r\nHi\r\n")


@pytest.mark.skipif(shutil.which("swaks") is None, reason="swaks is not installed")
def test_smtp(server: FirstServer) -> None:
    server.run(SWAKS.replace("ms_…", server.key) + " --header 'Subject: From swaks'")
    inbox(server, "From swaks")


def test_the_variables_of_the_tutorial(server: FirstServer) -> None:
    server.run("\n".join([VARIABLES, *code("first-email", "bash")]))
    assert "<p>It works.</p>" in inbox(server, "Hello from curl")


def test_the_tutorials_command_shows_the_records_of_a_domain(server: FirstServer) -> None:
    added = json.loads(server.run("\n".join([VARIABLES, *code("first-domain", "bash")])))
    shown = server.run("\n".join([VARIABLES, SHOW_DOMAIN]))
    for record in added["records"]:
        assert record["value"].split('"')[1 if '"' in record["value"] else 0][:60] in shown, record


def test_ctrl_c_stops_the_server_and_the_next_start_finds_everything(server: FirstServer) -> None:
    key, sent = server.key, json.loads(server.run(next_steps(server)[1]))["id"]
    inbox(server, "Hello")
    server.ctrl_c()
    postgres = server.folder / "var/postgres/data"
    assert (postgres / "PG_VERSION").exists() and not (postgres / "postmaster.pid").exists()
    server.start(RUN.strip())
    assert server.key == key
    assert sent in {each["id"] for each in json.loads(server.run("\n".join([VARIABLES, LIST_EMAILS])))["data"]}


@pytest.mark.slow
def test_in_production(tmp_path: Path, database: str) -> None:
    """With a settings file as etc/mailsvc.toml explains it."""
    venv, activate, wheel, *commands, start = bare(PRODUCTION).splitlines()
    assert (venv, activate) == ("python3 -m venv ~/venv", ". ~/venv/bin/activate")
    assert wheel == "make wheel && pip install dist/mailsvc-*.whl"
    listen, control = free_port(), Path(f"/tmp/mailsvc-{os.getpid()}.sock")
    settings: dict[str, dict[str, object]] = {
        "": {"base_url": "https://api.example.com"},
        "database": {"url": database},
        "http": {"listen": [f"tcp:{listen}:interface=127.0.0.1"]},
        "smtp": {"listen": {}},
        "delivery": {"ehlo_name": "out.example.com"},
        "secrets": {"key_file": "secret.key"},
        "control": {"socket": str(control)},
    }
    (tmp_path / "mailsvc.toml").write_text(toml(settings))
    said: list[str] = []
    for command in commands:
        account = said[1].strip() if len(said) > 1 else ""
        said.append(run(command.replace("ACCOUNT", account), tmp_path))
    assert "https://api.example.com/dashboard/" in said[2] and "._domainkey.example.com. " in said[3]
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(["bash", "-c", f"exec {start}"], cwd=tmp_path, env=environment(), stdout=log, stderr=log)
    try:
        for check in ("healthz", "readyz"):
            run(f"curl --silent --fail --retry 60 --retry-delay 1 --retry-connrefused http://127.0.0.1:{listen}/{check}", tmp_path)
        [key] = re.findall(r"ms_\w+", said[4])
        mail = '{"from": "a@example.com", "to": "b@example.net", "subject": "Hi", "text": "Hi"}'
        body = f"-H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{mail}'"
        refused = run(f"curl --silent http://127.0.0.1:{listen}/emails {body}", tmp_path)
        assert "example.com" in refused and "not verified" in refused, refused
    finally:
        daemon.terminate()
        daemon.wait(60)
        control.unlink(missing_ok=True)
