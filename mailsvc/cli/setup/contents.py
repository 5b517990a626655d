"""The texts of the files that `mailsvc setup` writes: settings, systemd unit, web server, certificate."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from mailsvc.cli.setup.answers import REGION, Answers
from mailsvc.settings.example import written

DATA = Path("/var/lib/mailsvc")
RUN = "/run/mailsvc"
SETTINGS = Path("/etc/mailsvc/mailsvc.toml")
UNIT = "mailsvc.service"
_PROGRAMS = "/opt/mailsvc/bin"  # in the unit of this repository
_CONTAINER = "WAIT_FOR_CERTIFICATE"  # set by compose.yaml: the container starts mailsvc when this file is there


@attrs.frozen
class Places:
    """`config`: the settings file; `data`: the folder for keys and markers; `user`: who runs the daemon."""

    config: Path
    data: Path
    user: str

    @property
    def folder(self) -> Path:
        return self.config.parent

    @property
    def tls(self) -> Path:
        """Where the certificate of the SMTP ports is."""
        return self.folder / "tls"

    @property
    def key(self) -> Path:
        return self.data / "secret.key"


def settings(answers: Answers, places: Places) -> str:
    tables: dict[str, dict[str, object]] = {
        "": {"base_url": answers.url, "sender": answers.sender, "region": answers.region},
        "database": {"url": answers.database, "restore_marker": str(places.data / "restore_marker"), "compress": True},
        "http": {"trusted_proxies": ["127.0.0.1"]},
        "smtp": {"certbot": str(places.tls), "postmaster": answers.operator, "postmaster_domain": answers.domain},
        "delivery": {"ehlo_name": answers.host, "sources": answers.sources or None},
        "control": {"socket": f"{RUN}/control.sock"},
        "metrics": {"listen": [f"unix:{RUN}/metrics.sock"]},
        "privacy": {"journal": str(places.data / "erasures")},
        "secrets": {"key_file": str(places.key)},
    }
    if answers.region == REGION:
        del tables[""]["region"]
    lines = [
        "# Written by `mailsvc setup`, which leaves this file alone once you have edited it.",
        "# Every setting: etc/mailsvc.toml of this release.",
    ]
    for table, values in tables.items():
        lines += ["", f"[{table}]"] if table else [""]
        lines += [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return written(tuple(value) if isinstance(value, list) else value)


def shipped(name: str) -> str:
    """A file that comes with mailsvc: in the wheel under share/, in the repository in etc/."""
    folders = Path(sys.prefix) / "share/mailsvc", Path(__file__).parents[3] / "etc"
    return next(folder / name for folder in folders if (folder / name).exists()).read_text("utf-8")


def unit(places: Places) -> str:
    """The systemd unit, for this virtual environment and these folders."""
    text = shipped(UNIT).replace(_PROGRAMS, str(Path(sys.executable).parent)).replace(str(SETTINGS), str(places.config))
    text = text.replace("User=mailsvc\nGroup=mailsvc\n", f"User={places.user}\nGroup={places.user}\n")
    if places.data != DATA:
        text = text.replace("StateDirectory=mailsvc\nStateDirectoryMode=0700\n", f"ReadWritePaths={places.data}\n")
    return text.replace(f"WorkingDirectory={DATA}", f"WorkingDirectory={places.data}")


NGINX = """\
# nginx in front of mailsvc. certbot adds TLS to it.
upstream mailsvc {
    server 127.0.0.1:8025;
    keepalive 32;
    keepalive_timeout 30s;
}
server {
    server_name %(spaced)s;
    client_max_body_size 201m;
    location / {
        proxy_pass http://mailsvc;
        proxy_http_version 1.1;
        proxy_request_buffering off;
        proxy_read_timeout 120s;
        proxy_set_header Host $host;
        proxy_set_header Connection "";
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }
}
"""

CERTBOT = """\
#!/bin/sh
# certbot runs this after each renewal: it copies the certificate to where mailsvc reads it. mailsvc needs no restart.
set -e
for file in fullchain.pem privkey.pem; do
    install -o %(user)s -g %(user)s -m 600 "$RENEWED_LINEAGE/$file" %(tls)s/
done
"""

CADDY = """\
# Caddy in front of mailsvc. It gets the certificates.
%(names)s {
    request_body {
        max_size 201MiB
    }
    reverse_proxy 127.0.0.1:8025 {
        transport http {
            keepalive 30s
        }
    }
}
"""

FROM_CADDY = """\
#!/bin/sh
# Copies Caddy's certificate to where mailsvc reads it. mailsvc needs no restart. cron runs this every day.
set -e
found=$(find /var/lib/caddy -path '*/%(host)s/%(host)s.crt' | head -n 1)
[ -n "$found" ] || { echo "Caddy has no certificate for %(host)s yet." >&2; exit 1; }
install -o %(user)s -g %(user)s -m 600 "$found" %(tls)s/fullchain.pem
install -o %(user)s -g %(user)s -m 600 "${found%%.crt}.key" %(tls)s/privkey.pem
"""


def web(server: str, answers: Answers, places: Places) -> Mapping[str, tuple[str, int]]:
    """The files for a web server and its certificate, with their modes."""
    name = urlsplit(answers.url).hostname or answers.host
    names = list(dict.fromkeys([name, answers.host]))
    values = {
        "spaced": " ".join(names),
        "names": ", ".join(names),
        "host": answers.host,
        "user": places.user,
        "tls": shlex.quote(str(places.tls)),
    }
    if server == "nginx":
        return {"nginx.conf": (NGINX % values, 0o644), "certbot-hook": (CERTBOT % values, 0o755)}
    if server == "caddy":
        return {"Caddyfile": (CADDY % values, 0o644), "certificate-from-caddy": (FROM_CADDY % values, 0o755)}
    return {}


def steps(server: str, answers: Answers, places: Places) -> list[str]:
    """What the operator does with these files."""
    name, folder = urlsplit(answers.url).hostname or answers.host, places.folder
    if server == "nginx":
        names = " ".join(f"-d {each}" for each in dict.fromkeys([answers.host, name]))
        return [
            f"Put nginx in front: apt install nginx certbot python3-certbot-nginx; ln -s {folder}/nginx.conf "
            "/etc/nginx/sites-enabled/mailsvc; systemctl reload nginx",
            f"Get a certificate: certbot --nginx --cert-name {answers.host} {names} --deploy-hook {folder}/certbot-hook",
        ]
    if server == "caddy":
        return [
            f"Put Caddy in front: apt install caddy; echo 'import {folder}/Caddyfile' >> /etc/caddy/Caddyfile; systemctl reload caddy",
            f"Copy its certificate, and every day again: {folder}/certificate-from-caddy && "
            f"ln -s {folder}/certificate-from-caddy /etc/cron.daily/mailsvc-certificate",
        ]
    if _CONTAINER in os.environ:
        return [f"Run `docker compose up --detach`. Caddy gets the certificate of {answers.host}, and mailsvc starts when it is there."]
    return [
        f"Put the certificate of {answers.host} and its key into {places.tls}, as fullchain.pem and privkey.pem, readable for {places.user}"
    ]
