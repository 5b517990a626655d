"""A clean Debian 12 with a network of its own, to follow the documentation in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
REGISTRIES = {"pip_index_url", "npm_config_registry", "http_proxy", "https_proxy", "no_proxy"}
SECONDS = 600  # for one command


def make_base(file: Path) -> None:
    """Writes the files of a clean root as a tar archive."""
    packages = ("--quiet", "--variant=minbase", "--include=ca-certificates,openssl,iproute2,netbase")
    subprocess.run(["mmdebstrap", *packages, "bookworm", file, "http://deb.debian.org/debian"], check=True, stdout=subprocess.DEVNULL)


def remove(folder: Path) -> None:
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)  # never what is mounted


class Root:
    """`run` is in the root's own network, which has no way out, `online` in that of this machine. `user` is root unless given.

    The programs run in a mount namespace of their own (their first line): whoever removes the folder after a kill must not reach /dev.
    """

    def __init__(self, work: Path, name: str, base: Path, packages: str = "", nameserver: str = "127.0.0.1") -> None:
        self.path, self.nameserver = work / name, nameserver
        self.path.mkdir()
        subprocess.run(["tar", "-xf", base, "-C", self.path], check=True)
        shutil.copytree("/etc/apt/apt.conf.d", self.path / "etc/apt/apt.conf.d", dirs_exist_ok=True)
        (self.path / "etc/apt/apt.conf.d/90yes").write_text('APT::Get::Assume-Yes "true";\n')
        (self.path / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")  # as Debian's installer writes it
        (self.path / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (self.path / "usr/sbin/policy-rc.d").chmod(0o755)
        for each in ("proc", "dev", "dev/pts", "dev/shm"):
            subprocess.run(["mount", "--bind", f"/{each}", self.path / each], check=True)
        self.network = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep infinity"])
        self.processes: list[subprocess.Popen[bytes]] = []
        self.online(
            "apt-get -qq update" + (f" && apt-get -qq install --no-install-recommends {packages} >/dev/null 2>&1" if packages else "")
        )

    def _command(self, script: str, user: str) -> list[str]:
        home = f"/home/{user}" if user else "/root"
        environment = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", f"HOME={home}", "LC_ALL=C.UTF-8"]
        environment += ["DEBIAN_FRONTEND=noninteractive", "PIP_DISABLE_PIP_VERSION_CHECK=1"]
        environment += [f"{name}=/run/authorities.pem" for name in ("PIP_CERT", "NODE_EXTRA_CA_CERTS")]
        environment += [f"{name}={value}" for name, value in os.environ.items() if name.lower() in REGISTRIES]
        who = [f"--userspec={user}:{user}"] if user else []
        return ["chroot", *who, str(self.path), "env", "-i", *environment, "bash", "-c", f"shopt -s expand_aliases\ncd ~\n{script}"]

    def _go_online(self) -> None:
        shutil.copy(AUTHORITIES, self.path / "run/authorities.pem")  # this machine may reach registries through a proxy of its own
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")
        shutil.rmtree(self.path / "run/systemd", ignore_errors=True)  # packages see that systemd does not run

    def _go_offline(self) -> None:
        (self.path / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        (self.path / "etc/resolv.conf").write_text(f"nameserver {self.nameserver}\n")

    def online(self, script: str, user: str = "", status: int = 0) -> str:
        self._go_online()
        return self._done(self._command(script, user), "", status)

    def run(self, script: str, given: str = "", user: str = "", status: int = 0) -> str:
        """What the script prints; the errors, too, if it is to fail with a status."""
        self._go_offline()
        return self._done([*self.inside(), *self._command(script, user)], given, status)

    def start(self, script: str, user: str = "", output: Path | None = None, *, online: bool = False) -> subprocess.Popen[bytes]:
        """A process of its own, that goes on. It leads a group, as a command in a terminal does."""
        self._go_online() if online else self._go_offline()
        command = [*([] if online else self.inside()), *self._command(script, user)]
        file = None if output is None else output.open("wb")
        self.processes.append(subprocess.Popen(command, stdout=file, stderr=None if file is None else file, start_new_session=True))
        return self.processes[-1]

    def inside(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.network.pid}/ns/net", "--"]

    def _done(self, command: list[str], given: str, status: int) -> str:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode != status:
            sys.exit(f"FAILED with status {done.returncode}:\n{command[-1]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout + done.stderr if status else done.stdout

    def end(self) -> None:
        for process in [each for each in Path("/proc").iterdir() if each.name.isdigit()]:
            try:
                if (process / "root").readlink() == self.path:
                    os.kill(int(process.name), 9)
            except OSError:
                continue
        for each in (*self.processes, self.network):
            each.kill()
            each.wait()
        for name in ("dev/shm", "dev/pts", "dev", "proc"):
            subprocess.run(["umount", "--lazy", self.path / name], check=False)


def has(text: str, wanted: str) -> None:
    if wanted not in text:
        sys.exit(f"FAILED: expected {wanted!r} in:\n{text}")
