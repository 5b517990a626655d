"""Reverse proxies with the settings of the documentation, which are read from its pages; only ports and certificates are replaced."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.end_to_end.rig import PROJECT

UPSTREAM = "127.0.0.1:8025"  # where the settings of the documentation reach mailsvc
LIMIT = 30  # seconds to start


def program(name: str) -> str | None:
    """Debian installs some of them outside of the path of ordinary users."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def indented(page: str, begin: str, end: str) -> str:
    """The part of a page's code between two lines, the first one included."""
    lines = (PROJECT / "docs" / page).read_text("utf-8").splitlines()
    first = lines.index(f"    {begin}")
    return textwrap.dedent("\n".join(lines[first : next(n for n in range(first, len(lines)) if lines[n].startswith(end))]))


def replaced(text: str, **values: str) -> str:
    """Replaces each text, which must be there."""
    for old, new in values.items():
        assert old in text, f"{old} is not in the documentation"
        text = text.replace(old, new)
    return text


@attrs.frozen
class Wanted:
    """A proxy on `port`, with a certificate (`pem` has it and its key), in front of `upstream`."""

    name: str
    folder: Path
    port: int
    upstream: str
    pem: Path


def nginx(wanted: Wanted) -> list[str]:
    folder, port, pem = wanted.folder, wanted.port, wanted.pem
    documented = indented("operations.md", "upstream mailsvc {", "    END")
    tls = f"listen 127.0.0.1:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {pem};"  # what certbot adds
    site = replaced(documented, **{UPSTREAM: wanted.upstream, "server_name api.example.com;": f"server_name api.example.com; {tls}"})
    return nginx_with(folder, f"access_log off;\n{site}")


def nginx_with(folder: Path, http: str, rest: str = "", modules: Sequence[Path] = ()) -> list[str]:
    """Its arguments. Its settings have `http` in their section of that name, and `rest` at their end."""
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;\n" if os.geteuid() == 0 else ""
    loaded = "".join(f"load_module {module};\n" for module in modules)
    head = f"{user}{loaded}daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log stderr;\nevents {{ }}\n"
    (file := folder / "nginx.conf").write_text(f"{head}http {{\n{temporary}{http}\n}}\n{rest}\n")
    return ["-p", str(folder), "-e", "stderr", "-c", str(file)]


def caddy(wanted: Wanted) -> list[str]:
    documented = indented("reverse-proxy.md", "api.example.com {", "For")
    address = f"https://api.example.com:{wanted.port} {{\n    bind 127.0.0.1\n    tls {wanted.pem} {wanted.pem}"
    site = replaced(documented, **{UPSTREAM: wanted.upstream, "api.example.com {": address})
    (file := wanted.folder / "Caddyfile").write_text(f"{{\n    admin off\n    auto_https off\n}}\n{site}\n")
    return ["run", "--adapter", "caddyfile", "--config", str(file)]


def haproxy(wanted: Wanted) -> list[str]:
    documented = indented("reverse-proxy.md", "frontend mailsvc", "The PEM")
    bind = {"bind :443 ": f"bind 127.0.0.1:{wanted.port} ", "/etc/haproxy/api.example.com.pem": str(wanted.pem)}
    (file := wanted.folder / "haproxy.cfg").write_text(replaced(documented, **{UPSTREAM: wanted.upstream}, **bind) + "\n")
    return ["-db", "-f", str(file)]


def haproxy_of_cells(wanted: Wanted) -> list[str]:
    """`upstream` has the servers of the two cells, us_1 first."""
    frontend = indented("reverse-proxy.md", "frontend mailsvc", "    backend mailsvc")
    begin = "    use_backend %[req.hdr(authorization),regsub(^[Bb]earer\\ +,),map_beg(/etc/haproxy/cells.map,us_1)]"
    routing = textwrap.indent(indented("reverse-proxy.md", begin, "The dash"), "    ")
    first, second = wanted.upstream.split()
    (cells := wanted.folder / "cells.map").write_text("ms_eu_1_ eu_1\nms_us_1_ us_1\n")
    bind = {"bind :443 ": f"bind 127.0.0.1:{wanted.port} ", "/etc/haproxy/api.example.com.pem": str(wanted.pem)}
    values = {"/etc/haproxy/cells.map": str(cells), UPSTREAM: first, "127.0.0.1:8026": second, "    default_backend mailsvc\n": "", **bind}
    (file := wanted.folder / "haproxy.cfg").write_text(replaced(f"{frontend}\n{routing}\n", **values))
    return ["-db", "-f", str(file)]


def nginx_of_cells(wanted: Wanted) -> list[str]:
    """`upstream` has the servers of the two cells, us_1 first."""
    port, pem, (first, second) = wanted.port, wanted.pem, wanted.upstream.split()
    tls = f"listen 127.0.0.1:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {pem};"
    values = {UPSTREAM: first, "127.0.0.1:8026": second, "server_name api.example.com;": f"server_name api.example.com; {tls}"}
    documented = indented("reverse-proxy.md", "upstream us_1 {", "A request")
    return nginx_with(wanted.folder, f"access_log off;\n{replaced(documented, **values)}")


PROXIES = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy}
CELLS = {"haproxy of cells": haproxy_of_cells, "nginx of cells": nginx_of_cells}


@contextmanager
def running(wanted: Wanted) -> Iterator[None]:
    """The proxy, as soon as it accepts connections."""
    wanted.folder.mkdir()
    settings = {**PROXIES, **CELLS}[wanted.name]
    with started(wanted.name.split()[0], settings(wanted), wanted.folder, wanted.port):
        yield


@contextmanager
def started(name: str, arguments: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    """The program, as soon as it accepts connections on `port`. Its output is in the file `log`."""
    executable = program(name)
    assert executable is not None
    command = [executable, *arguments]
    homes = {variable: str(folder) for variable in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **homes})
    try:
        deadline = time.monotonic() + LIMIT
        while not _accepts(port):
            written = (folder / "log").read_text(errors="replace")
            assert process.poll() is None, f"{name} ended:\n{written}"
            assert time.monotonic() < deadline, f"{name} is not ready:\n{written}"
            time.sleep(0.05)  # another process: it has to be polled
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)  # Caddy waits for its clients
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


class Counter:
    """Passes connections on to a port, and counts them."""

    def __init__(self, port: int) -> None:
        self._to, self.connections = port, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)
