"""Code examples that send an email through the API or over SMTP. Pure."""

from __future__ import annotations

import json

import attrs

from mailsvc.http.reference.samples import LANGUAGES, Call

_MARKS = {"Go": "//", "PHP": "//", "Ruby": "#", "Rust": "//", ".NET": "//"}  # how a comment begins


def all_of(base_url: str, key: str, sender: str, to: str) -> list[tuple[str, str]]:
    """API examples, as (name, code)."""
    mail = {"from": sender, "to": to, "subject": "Hello from mailsvc", "html": "<p>It works.</p>"}
    body = json.dumps(mail, indent=2, ensure_ascii=False)
    return [
        ("curl", _curl(base_url, key, body)),
        ("Node.js", _node(base_url, key, body)),
        ("Python", _python(base_url, key, mail)),
        *((name, _from_environment(name, base_url, key, mail)) for name in _MARKS),
    ]


def _from_environment(language: str, base_url: str, key: str, mail: dict[str, str]) -> str:
    """The program of the API's reference, which reads address and key from its environment."""
    _, program = LANGUAGES[language]
    code = program(Call("POST", "/emails", True, mail))
    return f"{code}\n\n{_MARKS[language]} Set BASE_URL={base_url} and API_KEY={key} in its environment."


def _curl(base_url: str, key: str, body: str) -> str:
    return (
        f"curl {base_url}/emails \\\n  -H 'Authorization: Bearer {key}' \\\n  -H 'Content-Type: application/json' \\\n"
        f"  -d '{_quoted(body)}'"
    )


def _quoted(text: str) -> str:
    """Escaped for single quotes in a shell."""
    return text.replace("'", "'\\''")


def _python(base_url: str, key: str, mail: dict[str, str]) -> str:
    lines = "".join(f"    {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)},\n" for name, value in mail.items())
    return f'import resend\n\nresend.api_url = "{base_url}"\nresend.api_key = "{key}"\n\nresend.Emails.send({{\n{lines}}})'


def _node(base_url: str, key: str, body: str) -> str:
    head = f'const response = await fetch("{base_url}/emails", {{\n  method: "POST",\n'
    headers = f'  headers: {{ Authorization: "Bearer {key}", "Content-Type": "application/json" }},\n'
    return head + headers + "  body: JSON.stringify(" + body.replace("\n", "\n  ") + "),\n});\nconsole.log(await response.json());"


@attrs.frozen
class Login:
    """What a client needs to submit mail over SMTP. A port is a number and whether it uses implicit TLS.

    `starttls`: the port for clients that prefer STARTTLS.
    """

    host: str
    port: tuple[int, bool]
    starttls: tuple[int, bool]
    user: str
    key: str
    sender: str
    to: str


def over_smtp(login: Login) -> list[tuple[str, str]]:
    """SMTP examples, as (name, code)."""
    return [
        ("swaks", _swaks(login)),
        ("Python", _smtplib(login)),
        ("Node.js (Nodemailer)", _nodemailer(login)),
        ("Postfix (as its relay host)", _postfix(login)),
        ("Environment variables (Laravel and others)", _environment(login)),
    ]


def _swaks(login: Login) -> str:
    port, tls = login.starttls
    how = "--tls-on-connect" if tls else "--tls"
    return (
        f"swaks --server {login.host}:{port} {how} \\\n  --auth PLAIN --auth-user {login.user} --auth-password '{login.key}' \\\n"
        f"  --from {login.sender} --to {login.to}"
    )


def _smtplib(login: Login) -> str:
    port, tls = login.port
    begin = "" if tls else "    relay.starttls()\n"
    return f"""import smtplib
from email.message import EmailMessage

mail = EmailMessage()
mail["From"], mail["To"] = "{login.sender}", "{login.to}"
mail["Subject"] = "Hello from mailsvc"
mail.set_content("It works.")

with smtplib.SMTP{"_SSL" if tls else ""}("{login.host}", {port}) as relay:
{begin}    relay.login("{login.user}", "{login.key}")
    relay.send_message(mail)"""


def _nodemailer(login: Login) -> str:
    port, tls = login.port
    return f"""import nodemailer from "nodemailer";

const relay = nodemailer.createTransport({{
  host: "{login.host}",
  port: {port},
  {"secure: true" if tls else "requireTLS: true"},
  auth: {{ user: "{login.user}", pass: "{login.key}" }},
}});
await relay.sendMail({{
  from: "{login.sender}",
  to: "{login.to}",
  subject: "Hello from mailsvc",
  text: "It works.",
}});"""


def _postfix(login: Login) -> str:
    port, tls = login.starttls
    wrapped = "smtp_tls_wrappermode = yes\n" if tls else ""
    return f"""# /etc/postfix/main.cf
relayhost = [{login.host}]:{port}
smtp_tls_security_level = verify
{wrapped}smtp_sasl_auth_enable = yes
smtp_sasl_security_options = noanonymous
smtp_sasl_password_maps = texthash:/etc/postfix/sasl_passwd

# /etc/postfix/sasl_passwd, readable by root only (chmod 600)
[{login.host}]:{port} {login.user}:{login.key}"""


def _environment(login: Login) -> str:
    port, tls = login.starttls
    return f"""MAIL_MAILER=smtp
MAIL_HOST={login.host}
MAIL_PORT={port}
MAIL_ENCRYPTION={"ssl" if tls else "tls"}
MAIL_USERNAME={login.user}
MAIL_PASSWORD={login.key}
MAIL_FROM_ADDRESS={login.sender}"""
