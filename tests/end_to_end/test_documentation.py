"""Programs of the tutorial, the how-to guides and the dashboard, run as written, against a development server and its sandbox inbox."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from etc.guide import pages
from mailsvc.dashboard.snippets import all_of
from tests.documentation import programs
from tests.end_to_end.clients.node import environment
from tests.end_to_end.rig import PROJECT, Daemon, eventually, free_port

DOCS = PROJECT / "docs"
# Pages whose programs for these languages are all run: those of `console` by test_first_steps, the others below.
RUN = {
    "tutorial/first-email": {"console", "bash", "python", "js"},
    "tutorial/first-domain": {"console", "bash", "python"},
    "tutorial/first-webhook": {"bash", "python"},
    "tutorial/first-broadcast": {"bash", "python"},
    "how-to/django": {"python"},
    "how-to/fastapi": {"python"},
    "how-to/nextjs": {"js"},
    "how-to/rails": {"ruby"},
    "how-to/smtp-services": {"python"},
}
# Only the syntax of its PHP is checked: the guide is for releases of Laravel that Debian does not have.
READ = {"how-to/laravel": {"ini", "php"}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    """As `make run` starts it, on other ports."""
    folder, inbox = tmp_path_factory.mktemp("docs"), free_port()
    changes: dict[str, dict[str, object]] = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
        "smtp": {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
        "fetch": {"ports": [], "allow_http": True, "allowed_networks": ["127.0.0.0/8", "::1/128"]},
        "abuse": {"ramp": [], "bounce_rate": 0, "complaint_rate": 0},
    }
    daemon = Daemon(folder, module_database, changes)
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture
def variables(daemon: Daemon) -> dict[str, str]:
    return {
        **environment(),
        "BASE_URL": f"http://127.0.0.1:{daemon.port}",
        "API_KEY": daemon.facts["api_key"],
        "SMTP_HOST": "localhost",
        "SMTP_PORT": str(daemon.facts["smtp"]["587"]),
        "SSL_CERT_FILE": str(daemon.folder / "tls/certificate.pem"),
    }


def code(page: str, language: str) -> list[str]:
    return pages.programs((DOCS / f"{page}.md").read_text("utf-8"), language)


def run(command: list[str], variables: Mapping[str, str], folder: Path, text: str | None = None) -> str:
    done = subprocess.run(command, env=dict(variables), cwd=folder, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shell(page: str, variables: Mapping[str, str], folder: Path, which: slice = slice(None)) -> str:
    return run(["bash", "-e"], variables, folder, "\n".join(code(page, "bash")[which]))


def arrived(daemon: Daemon, subject: str, count: int = 1) -> list[dict[str, Any]]:
    """The emails with this subject in the sandbox inbox."""

    def found() -> list[Any]:
        listed = daemon.call("GET", "/sandbox/emails?limit=100").body["data"]
        received = {each["email_id"] for each in listed}
        sent = daemon.call("GET", "/emails?limit=100").body["data"]
        same = [each for each in sent if each["subject"] == subject and each["id"] in received]
        return same if len(same) >= count else []

    return [dict(each) for each in eventually(found)]


def test_every_program_of_the_guides_is_run_or_read() -> None:
    written = {
        page.relative_to(DOCS).with_suffix("").as_posix(): {language for language, _ in pages.fenced(page.read_text("utf-8"))}
        for folder in ("tutorial", "how-to")
        for page in (DOCS / folder).glob("*.md")
    }
    assert written == RUN | READ


def test_first_email(daemon: Daemon, variables: dict[str, str], tmp_path: Path) -> None:
    page = "tutorial/first-email"
    assert '"last_event"' in shell(page, variables, tmp_path)
    [python], [node] = code(page, "python"), code(page, "js")
    run([sys.executable, "-c", python], variables, tmp_path)
    (tmp_path / "send.mjs").write_text(node)
    run(["node", "send.mjs"], variables, tmp_path)
    for language in ("curl", "Python", "Node.js"):
        arrived(daemon, f"Hello from {language}")
    [bounced] = [each for each in daemon.call("GET", "/emails").body["data"] if each["subject"] == "Will bounce"]
    daemon.until(f"/emails/{bounced['id']}", variables["API_KEY"], lambda body: body["last_event"] == "bounced")


def test_first_domain(variables: dict[str, str], tmp_path: Path) -> None:
    added = json.loads(shell("tutorial/first-domain", variables, tmp_path))
    assert added["name"] == "mail.example.com" and added["records"]
    [python] = code("tutorial/first-domain", "python")
    first, *records = run([sys.executable, "-c", python], variables, tmp_path).splitlines()
    assert first == "pending" and len(records) == len(added["records"])


def test_first_webhook(variables: dict[str, str], tmp_path: Path) -> None:
    variables = {**variables, "PORT": str(free_port())}
    [python] = code("tutorial/first-webhook", "python")
    (tmp_path / "endpoint.py").write_text(python)
    with (tmp_path / "printed").open("w") as output:
        endpoint = subprocess.Popen([sys.executable, "endpoint.py"], env=variables, cwd=tmp_path, stdout=output)
    try:
        shell("tutorial/first-webhook", variables, tmp_path)
        eventually(lambda: re.findall(r"(email\.delivered) \['webhook@example\.net'\]", (tmp_path / "printed").read_text()))
    finally:
        endpoint.terminate()
        endpoint.wait(10)


def test_the_endpoint_of_the_tutorial_refuses_forged_events(variables: dict[str, str], tmp_path: Path) -> None:
    [python] = code("tutorial/first-webhook", "python")
    definitions = python.partition("\n\nclass Endpoint")[0]
    check = (
        "now = str(int(time.time()))\n"
        "headers = {'webhook-id': 'msg_1', 'webhook-timestamp': now, 'webhook-signature': 'v1,AAAA'}\n"
        "assert not is_genuine('whsec_AAAA', headers, b'{}')\n"
    )
    run([sys.executable, "-c", f"{definitions}\n\n{check}"], variables, tmp_path)


def test_first_broadcast(daemon: Daemon, variables: dict[str, str], tmp_path: Path) -> None:
    [python] = code("tutorial/first-broadcast", "python")
    run([sys.executable, "-c", python], variables, tmp_path)
    arrived(daemon, "News for Ada")
    arrived(daemon, "News for Grace")
    assert "grace@example.net" in shell("tutorial/first-broadcast", variables, tmp_path)


def test_django(daemon: Daemon, variables: dict[str, str], tmp_path: Path) -> None:
    settings, send = code("how-to/django", "python")
    (tmp_path / "settings.py").write_text(settings)
    (tmp_path / "send.py").write_text(f"import django\n\ndjango.setup()\n\n{send}")
    variables["DJANGO_SETTINGS_MODULE"] = "settings"
    run([sys.executable, "send.py"], variables, tmp_path)
    with pytest.raises(AssertionError, match=r"SMTPDataError: \(550, b'5\.7\.1 The idempotency key"):
        run([sys.executable, "send.py"], variables, tmp_path)
    assert len(arrived(daemon, "Welcome from Django")) == 1


def test_fastapi(daemon: Daemon, variables: dict[str, str], tmp_path: Path) -> None:
    [application] = code("how-to/fastapi", "python")
    (tmp_path / "app.py").write_text(application)
    (tmp_path / "call.py").write_text(
        "import asyncio, httpx\nfrom app import app\n\n"
        "async def main():\n"
        "    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url='http://app') as client:\n"
        "        for address in ('ada@example.net', 'ada@example.net', 'nobody'):\n"
        "            print((await client.post(f'/invitations/{len(address)}', params={'address': address})).status_code)\n\n"
        "asyncio.run(main())\n"
    )
    assert run([sys.executable, "call.py"], variables, tmp_path).split() == ["202", "202", "502"]
    assert len(arrived(daemon, "Invitation from FastAPI")) == 1


def test_nextjs(daemon: Daemon, variables: dict[str, str], tmp_path: Path) -> None:
    """A route handler is a function from a request to a response of the web platform, which Node.js has, too."""
    [route] = code("how-to/nextjs", "js")
    (tmp_path / "route.mjs").write_text(route)
    (tmp_path / "call.mjs").write_text(
        'import { POST } from "./route.mjs";\n'
        'for (const [address, user] of [["ada@example.net", 1], ["nobody", 2]]) {\n'
        '  const request = new Request("http://app/", { method: "POST", body: JSON.stringify({ address, user }) });\n'
        "  console.log((await POST(request)).status);\n}\n"
    )
    assert run(["node", "call.mjs"], variables, tmp_path).split() == ["200", "502"]
    arrived(daemon, "Welcome from Next.js")


def test_smtp_services(daemon: Daemon, variables: dict[str, str], tmp_path: Path) -> None:
    [python] = code("how-to/smtp-services", "python")
    run([sys.executable, "-c", python], variables, tmp_path)
    arrived(daemon, "Hello over SMTP")


def test_rails(daemon: Daemon, variables: dict[str, str], tmp_path: Path) -> None:
    """An application with nothing but Action Mailer, the files of the guide, and the views that they need."""
    if shutil.which("ruby") is None or subprocess.run(["ruby", "-e", "require 'action_mailer/railtie'"], capture_output=True).returncode:
        programs.missing("Rails", "Action Mailer needs ruby-railties and ruby-actionmailer, which this machine does not have.")
    settings, parent, mailer = code("how-to/rails", "ruby")
    files = {
        "config/environments/production.rb": settings,
        "app/mailers/application_mailer.rb": parent,
        "app/mailers/welcome_mailer.rb": mailer.replace('"Welcome"', '"Welcome from Rails"'),
        "app/views/layouts/mailer.html.erb": "<html><body><%= yield %></body></html>",
        "app/views/welcome_mailer/welcome.html.erb": "<p>Glad that you are here.</p>",
        "send.rb": (
            'require "action_mailer/railtie"\n\nclass Shop < Rails::Application\n  config.root = __dir__\n  config.eager_load = true\n'
            '  config.logger = Logger.new($stderr)\n  config.secret_key_base = "test"\nend\n\nRails.application.initialize!\n'
            'WelcomeMailer.welcome(Struct.new(:id, :email).new(7, "ada@example.net")).deliver_now\n'
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    variables["RAILS_ENV"] = "production"
    run(["ruby", "send.rb"], variables, tmp_path)
    run(["ruby", "send.rb"], variables, tmp_path)  # a retried job
    assert len(arrived(daemon, "Welcome from Rails")) == 1
    (tmp_path / "app/views/welcome_mailer/welcome.text.erb").write_text("Glad that you are here.")
    with pytest.raises(AssertionError, match=r"550 5\.7\.1 The idempotency key"):
        run(["ruby", "send.rb"], variables, tmp_path)


@pytest.mark.parametrize("language", programs.NAMES)
def test_the_samples_of_the_dashboard(daemon: Daemon, variables: dict[str, str], language: str, tmp_path: Path) -> None:
    address = f"{language.lower().strip('.')}@example.net"
    sample = dict(all_of(variables["BASE_URL"], variables["API_KEY"], f"hello@{daemon.facts['domain']}", address))[language]
    (tmp_path / "sample").mkdir()
    programs.run(language, [sample], tmp_path / "sample", variables)

    def found() -> list[Any]:
        return [each for each in daemon.call("GET", "/sandbox/emails?limit=100").body["data"] if address in json.dumps(each)]

    assert len(eventually(found)) == 1


def test_the_guide_for_laravel_can_be_read(tmp_path: Path) -> None:
    if shutil.which("php") is None:
        programs.missing("PHP", "php is not installed.")
    [mailable] = code("how-to/laravel", "php")
    (tmp_path / "mailable.php").write_text(mailable)
    run(["php", "-l", "mailable.php"], dict(os.environ), tmp_path)
