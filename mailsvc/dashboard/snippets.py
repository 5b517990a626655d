"""Lines to paste that send a first mail. Pure."""

from __future__ import annotations

import json


def all_of(base_url: str, key: str, sender: str, to: str) -> list[tuple[str, str]]:
    """Each with its name."""
    mail = {"from": sender, "to": to, "subject": "Hello from mailsvc", "html": "<p>It works.</p>"}
    body = json.dumps(mail, indent=2)
    return [
        ("curl", _curl(base_url, key, body)),
        ("Python", _python(base_url, key, mail)),
        ("Node", _node(base_url, key, body)),
    ]


def _curl(base_url: str, key: str, body: str) -> str:
    return (
        f"curl {base_url}/emails \\\n  -H 'Authorization: Bearer {key}' \\\n  -H 'Content-Type: application/json' \\\n"
        f"  -d '{_quoted(body)}'"
    )


def _quoted(text: str) -> str:
    """As a shell takes it between single quotes."""
    return text.replace("'", "'\\''")


def _python(base_url: str, key: str, mail: dict[str, str]) -> str:
    lines = "".join(f"    {json.dumps(name)}: {json.dumps(value)},\n" for name, value in mail.items())
    return f'import resend\n\nresend.api_url = "{base_url}"\nresend.api_key = "{key}"\n\nresend.Emails.send({{\n{lines}}})'


def _node(base_url: str, key: str, body: str) -> str:
    head = f'const answer = await fetch("{base_url}/emails", {{\n  method: "POST",\n'
    headers = f'  headers: {{ Authorization: "Bearer {key}", "Content-Type": "application/json" }},\n'
    return head + headers + "  body: JSON.stringify(" + body.replace("\n", "\n  ") + "),\n});\nconsole.log(await answer.json());"
