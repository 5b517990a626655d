"""`mailsvc setup`: the steps in their order. Each can be repeated, and says what it changed and what it left."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click
from click.core import ParameterSource

from mailsvc.accounts.onboarding import Customers
from mailsvc.cli import doctor, runner
from mailsvc.cli.setup import answers, contents, first, system, trial
from mailsvc.cli.setup.answers import Answers
from mailsvc.cli.setup.contents import Places
from mailsvc.cli.setup.files import Files, Owner
from mailsvc.monitoring import machine
from mailsvc.monitoring.doctor import Finding
from mailsvc.monitoring.installation import GREETING
from mailsvc.net.dns import Resolver
from mailsvc.runtime.database import Database
from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import BLOCK_LISTS, Settings
from mailsvc.store.encryption import key_file

PACKAGED = (Path("/lib/systemd/system/mailsvc.service"), Path("/usr/lib/systemd/system/mailsvc.service"))
UNIT = Path("/etc/systemd/system/mailsvc.service")
START = 60.0  # seconds for the daemon to be ready


@click.command("setup")
@click.option("--host", help="Public host name of this server, such as out.example.com.")
@click.option("--url", help="URL of the API and the dashboard. Default: https:// and the host name.")
@click.option("--database", help="URL of the Postgres database. A local one is created.")
@click.option("--operator", help="Your email address: problems, mail to postmaster@ and abuse@, and your login.")
@click.option("--domain", help="Your own domain, which mail from the service itself is sent from. Default: that of the host name.")
@click.option("--sender", help="Sender of mail from the service itself. Default: no-reply@ at the domain.")
@click.option("--source", "sources", multiple=True, help='An address to send from, and its EHLO name: "192.0.2.10 out.example.com".')
@click.option("--region", help="Name of the region of this server.")
@click.option("--data", type=click.Path(path_type=Path), default=contents.DATA, show_default=True, help="Folder for keys.")
@click.option("--user", default="mailsvc", show_default=True, help="System user that runs mailsvc. Created if it does not exist.")
@click.option("--web", type=click.Choice(["nginx", "caddy", "none"]), default="nginx", show_default=True, help="Web server in front.")
@click.option("--unit", type=click.Path(path_type=Path), default=UNIT, show_default=True, help="Where to write the systemd unit.")
@click.option("--no-unit", is_flag=True, help="Write no systemd unit, and start nothing.")
@click.option("--probe", help="A domain whose mail servers to connect to on port 25.", show_default=doctor.PROBE)
@click.option("--no-probe", is_flag=True, help="For closed networks: do not look up or connect to servers on the internet.")
@click.option("--yes", is_flag=True, help="Do not ask: use the options, the settings file and the defaults.")
@click.pass_context
def setup(
    context: click.Context, /, data: Path, user: str, web: str, unit: Path, no_unit: bool, probe: str | None, no_probe: bool, yes: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Set up this server: settings, keys, service, certificate, DNS records, the first account.

    Checks the machine, asks for what it needs, and ends with `doctor` and a test mail. Run it again after each step that is left to
    you: it says what it changed and what it left. It overwrites neither secrets nor files that were edited.
    """
    root = context.find_root()
    default = root.get_parameter_source("config") == ParameterSource.DEFAULT
    places = Places((contents.SETTINGS if default else root.params["config"]).absolute(), data.absolute(), user)
    found = answers.collect(given, places.config, asking=not yes)
    text = contents.settings(found, places)
    try:
        settings = loading.check(tomllib.loads(text))
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    probed = None if no_probe else probe or doctor.default_probe(settings)
    steps = Steps(found, places, text, web, None if no_unit else unit, probed)
    runner.start(settings, lambda reactor: steps.take(reactor, settings))


@attrs.define
class Steps:
    """`left`: what is left to do for the operator. `follows`: checks that fail until that is done."""

    answers: Answers
    places: Places
    text: str
    web: str
    unit: Path | None
    probe: str | None
    left: list[str] = attrs.field(factory=list)
    follows: set[str] = attrs.field(factory=set)

    async def take(self, reactor: Any, proposed: Settings) -> None:
        click.echo("This machine:")
        examined = doctor.doctor_for(proposed, None, reactor, self.probe, BLOCK_LISTS)
        running = await trial.ready(reactor, proposed, 0)
        self._show(
            [
                *machine.findings(machine.measure(self.places.data), proposed),
                *await examined.outside(),
                await machine.port25(proposed, doctor.smtp_banner(reactor), running),
            ]
        )
        click.echo("\nSettings:")
        settings = self._write()
        if settings.database.url is not None:
            system.create_database(settings.database.url, _say)
        with system.acting_as(self.places.user, self.places.data):
            await runner.with_database(reactor, settings, lambda database, _: self._with_database(settings, database, reactor))
        self._summary()

    def _write(self) -> Settings:
        """Writes the files. Returns the settings, which are those of an edited file if there is one."""
        places, owner = self.places, system.owner(self.places.user, self.places.data, _say)
        files = Files(places.folder / "setup.json", owner, _say)
        files.folder(places.folder, 0o750)
        files.folder(places.tls, 0o700, whole=True)
        files.folder(places.data, 0o700, whole=True)
        files.put(places.config, self.text, 0o640)
        try:
            settings = loading.load(places.config)
        except SettingsError as error:
            raise click.ClickException(str(error)) from None
        self._key(settings, owner)
        for name, (text, mode) in contents.web(self.web, self.answers, places).items():
            files.put(places.folder / name, text, mode)
        if self.unit is None:
            return settings
        packaged = next((path for path in PACKAGED if path.exists()), None)
        if packaged is not None:
            _say(f"left    {packaged}: it comes with the package")
        else:
            files.put(self.unit, contents.unit(places), 0o644)
        return settings

    def _key(self, settings: Settings, owner: Owner) -> None:
        path = settings.secrets.key_file
        if settings.secrets.key is not None:
            _say("left    the encryption keys: they are in the environment")
        elif path.exists():
            _say(f"left    {path}: encryption keys are never overwritten")
        elif key_file.make(path):
            owner.take(path, whole=True)
            _say(f"created {path}")
            self.left.append(f"Copy {path} to a safe place, apart from the backups of the database: without it, they cannot be used.")

    async def _with_database(self, settings: Settings, database: Database, reactor: Any) -> None:
        customers = Customers.of(database, reactor, settings)
        there = await first.prepare(customers, settings, self.answers, _say)
        if there.link is not None:
            self.left.append(f"Sign in to the dashboard, within a day: {there.link}")
        await self._zone(customers, settings, there, reactor)
        await self._start(reactor, settings)
        click.echo("\nInstallation:")
        examined = doctor.doctor_for(settings, database.pool, reactor, self.probe, BLOCK_LISTS)
        self._show(await doctor.inside(examined, settings, database, reactor))
        if await trial.ready(reactor, settings, 0):
            self._show([await trial.send(reactor, settings, customers, there.domain, self.answers.operator)])
        else:
            self._show([Finding("test mail", "warning", "Not sent: mailsvc does not run.", "Start it, then run `mailsvc setup` again.")])

    async def _zone(self, customers: Customers, settings: Settings, there: first.First, reactor: Any) -> None:
        resolver = Resolver(reactor, settings.delivery.nameservers, seconds=settings.delivery.dns_seconds)
        lines = await first.zone(customers, settings, there.domain, resolver)
        file = self.places.data / "dns.zone"
        file.write_text("\n".join(lines) + "\n", "utf-8")
        click.echo(f"\nDNS records ({file}):")
        for line in lines:
            click.echo(line)
        if there.domain.missing is not None:
            self.left.append(f"Publish the DNS records in {file}.")
            self.follows |= {"sender"}

    async def _start(self, reactor: Any, settings: Settings) -> None:
        """Starts the service if it can start: it does not without its certificate."""
        click.echo("\nService:")
        if not (self.places.tls / "fullchain.pem").exists():
            self.left += contents.steps(self.web, self.answers, self.places)
        if await trial.ready(reactor, settings, 0):
            _say("left    the service: it is running")
            return
        if not _startable(settings):
            _say("left    the service: it does not start without the certificate of the SMTP ports")
            self.follows |= {"processes", "certificate", *(f"port {number}" for number in GREETING)}
            return
        why = "--no-unit" if self.unit is None else system.start_service()
        if why is not None:
            _say(f"left    the service: {why}")
            self.left.append("Start mailsvc.")
            self.follows |= {"processes", *(f"port {number}" for number in GREETING)}
        elif await trial.ready(reactor, settings, START):
            _say("started the service")
        else:
            _say("started the service, but it is not ready")
            self.left.append("See why mailsvc is not ready: journalctl -u mailsvc")

    def _show(self, found: Sequence[Finding]) -> None:
        doctor.show(found)
        errors = [each for each in found if each.state == "error" and each.check not in self.follows]
        self.left += [f"{each.check}: {each.found} {each.remedy}" for each in errors]

    def _summary(self) -> None:
        if not self.left:
            click.echo("\nmailsvc is set up.")
            return
        click.echo("\nLeft to do. Then run `mailsvc setup` again:")
        for number, each in enumerate(dict.fromkeys(self.left), 1):
            click.echo(f"{number:2}. {each}")


def _startable(settings: Settings) -> bool:
    smtp = settings.smtp
    path = smtp.certbot / "fullchain.pem" if smtp.certbot is not None else smtp.certificate
    return "smtp" not in settings.roles or not smtp.listen or path is None or path.exists()


def _say(line: str) -> None:
    click.echo(line)
