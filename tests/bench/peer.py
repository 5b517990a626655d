"""Postfix with OpenDKIM from Debian: default durability, separate configuration and queue, loopback only.

Needs root, since Postfix does. The login's password goes to /etc/sasldb2, where Debian's libsasl looks for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mailsvc.smtp.server.certificates import self_signed
from tests.end_to_end.postfix import Instance
from tests.end_to_end.rig import free_port

PACKAGES = ("postfix", "opendkim", "sasl2-bin", "libsasl2-modules")
PROGRAMS = ("postfix", "opendkim", "saslpasswd2")
PATH = os.pathsep.join(("/usr/sbin", os.environ["PATH"]))
SENDER = "bench@sender.test"
USER, PASSWORD = "bench@rig.test", "benchpass"

_MAIN = """
myhostname = relay.rig.test
relayhost = [127.0.0.1]:{sink}
smtpd_relay_restrictions = permit_mynetworks, permit_sasl_authenticated, reject
smtpd_recipient_restrictions =
message_size_limit = 104857600
mailbox_size_limit = 0
alias_database =
local_recipient_maps =
disable_dns_lookups = yes
smtpd_peername_lookup = no
smtpd_tls_cert_file = {certificate}
smtpd_tls_key_file = {key}
smtpd_tls_security_level = may
smtpd_sasl_type = cyrus
smtpd_sasl_local_domain = rig.test
smtpd_tls_session_cache_database =
smtpd_milters = unix:{folder}/milter/sock
milter_default_action = tempfail
"""
_MASTER = """
127.0.0.1:{clear} inet n - n - - smtpd
127.0.0.1:{login} inet n - n - - smtpd
  -o smtpd_tls_security_level=encrypt
  -o smtpd_sasl_auth_enable=yes
  -o smtpd_relay_restrictions=permit_sasl_authenticated,reject
  -o mynetworks=
"""
_OPENDKIM = """
Syslog no
Mode s
Domain sender.test
Selector s1
KeyFile {folder}/dkim.key
Canonicalization relaxed/relaxed
SignatureAlgorithm rsa-sha256
Socket local:{folder}/milter/sock
UserID postfix
UMask 0007
PidFile {folder}/milter/pid
OversignHeaders From
InternalHosts 127.0.0.0/8
RequireSafeKeys no
"""


def install() -> None:
    """Installs missing packages from Debian, without starting them."""
    if all(shutil.which(program, path=PATH) for program in PROGRAMS):
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    answer = b"postfix postfix/main_mailer_type select No configuration\n"
    subprocess.run(["debconf-set-selections"], input=answer, check=True)
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], env=quiet, check=True)


class Peer(Instance):
    """The port `clear` accepts mail from loopback, `login` with STARTTLS and AUTH; all mail goes to the port `sink`."""

    def __init__(self, folder: Path, sink: int) -> None:
        super().__init__(folder)
        self.sink, self.clear, self.login = sink, free_port(), free_port()

    @property
    def pids(self) -> tuple[int, int]:
        """The parent processes."""
        return self.pid, self._milter()

    def configure(self) -> None:
        """Writes the configuration and the login."""
        certificate, key = self_signed(self.folder / "tls", "localhost")
        names = {"folder": self.folder, "sink": self.sink, "certificate": certificate, "key": key}
        self.write(_MAIN.format(**names), _MASTER.format(clear=self.clear, login=self.login).lstrip())
        (self.folder / "milter").mkdir()
        shutil.chown(self.folder / "milter", "postfix")
        (self.folder / "opendkim.conf").write_text(_OPENDKIM.format(**names))
        private = rsa.generate_private_key(65537, 2048)
        dkim = self.folder / "dkim.key"
        dkim.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
        dkim.chmod(0o600)
        shutil.chown(dkim, "postfix")
        name, _, realm = USER.partition("@")
        self._run("saslpasswd2", "-p", "-c", "-u", realm, name, given=PASSWORD)
        shutil.chown("/etc/sasldb2", "postfix")

    def start(self) -> None:
        self._run("opendkim", "-x", str(self.folder / "opendkim.conf"))
        super().start()
        for _ in range(100):
            if (self.folder / "queue/pid/master.pid").exists() and (self.folder / "milter/pid").exists():
                return
            time.sleep(0.05)
        raise AssertionError(f"Postfix or OpenDKIM did not start: {self.folder}")

    def stop(self) -> None:
        milter = self._milter()
        super().stop()
        os.kill(milter, signal.SIGTERM)
        for _ in range(100):
            if not Path(f"/proc/{milter}").exists():
                return
            time.sleep(0.05)

    def _milter(self) -> int:
        return int((self.folder / "milter/pid").read_text())

    @staticmethod
    def _run(*command: str, given: str | None = None) -> None:
        program = shutil.which(command[0], path=PATH)
        assert program is not None, command[0]
        done = subprocess.run(
            [program, *command[1:]], input=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
