"""Postfix with OpenDKIM, as they come from Debian: stock durability, a configuration and a queue of their own, loopback only.

Needs root, since Postfix does. The login's password goes to /etc/sasldb2, where Debian's libsasl looks for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import attrs
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mailsvc.smtp.certificates import self_signed
from tests.whole.rig import free_port

PACKAGES = ("postfix", "opendkim", "sasl2-bin", "libsasl2-modules")
PROGRAMS = ("postfix", "opendkim", "saslpasswd2")
PATH = os.pathsep.join(("/usr/sbin", os.environ["PATH"]))
SENDER = "bench@sender.test"
USER, PASSWORD = "bench@rig.test", "benchpass"

_MAIN = """
compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {folder}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
myhostname = relay.rig.test
mydestination =
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
relayhost = [127.0.0.1]:{sink}
smtpd_relay_restrictions = permit_mynetworks, permit_sasl_authenticated, reject
smtpd_recipient_restrictions =
maillog_file = {folder}/log/mail
maillog_file_prefixes = {folder}
message_size_limit = 104857600
mailbox_size_limit = 0
alias_maps =
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
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
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
    """What is missing, from Debian, without a queue or an instance of its own."""
    if all(shutil.which(program, path=PATH) for program in PROGRAMS):
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    answer = b"postfix postfix/main_mailer_type select No configuration\n"
    subprocess.run(["debconf-set-selections"], input=answer, check=True)
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], env=quiet, check=True)


@attrs.define
class Peer:
    """`clear` takes mail from anybody on loopback, `login` by STARTTLS and AUTH."""

    folder: Path
    sink: int
    clear: int = attrs.field(factory=free_port)
    login: int = attrs.field(factory=free_port)

    @property
    def pids(self) -> tuple[int, int]:
        """Those whose children do all the work."""
        return self._pid("queue/pid/master.pid"), self._pid("milter/pid")

    def write(self) -> None:
        """The configuration."""
        self.folder.chmod(0o755)
        for name in ("etc", "queue", "data", "log", "milter"):
            (self.folder / name).mkdir()
        for name in ("data", "milter"):
            shutil.chown(self.folder / name, "postfix")
        certificate, key = self_signed(self.folder / "tls", "localhost")
        names = {"folder": self.folder, "sink": self.sink, "certificate": certificate, "key": key}
        (self.folder / "etc" / "main.cf").write_text(_MAIN.format(**names))
        (self.folder / "etc" / "master.cf").write_text(_MASTER.format(clear=self.clear, login=self.login))
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
        self._run("postfix", "-c", str(self.folder / "etc"), "start")
        for _ in range(100):
            if (self.folder / "queue/pid/master.pid").exists() and (self.folder / "milter/pid").exists():
                return
            time.sleep(0.05)
        raise AssertionError(f"Postfix or OpenDKIM did not start: {self.folder}")

    def stop(self) -> None:
        milter = self._pid("milter/pid")
        self._run("postfix", "-c", str(self.folder / "etc"), "stop")
        os.kill(milter, signal.SIGTERM)
        for _ in range(100):
            if not Path(f"/proc/{milter}").exists():
                return
            time.sleep(0.05)

    def _pid(self, file: str) -> int:
        return int((self.folder / file).read_text())

    @staticmethod
    def _run(*command: str, given: str | None = None) -> None:
        program = shutil.which(command[0], path=PATH)
        assert program is not None, command[0]
        done = subprocess.run(
            [program, *command[1:]], input=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
