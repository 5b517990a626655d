"""The dashboard over HTTP, with a daemon behind it: signing up, signing in, and what must not be possible."""

from __future__ import annotations

import csv
import io
import re
import smtplib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyotp
import pytest

from tests.end_to_end.rig import Daemon, free_port, rows
from tests.end_to_end.visitor import Shown, Visitor, mailed_link

PASSWORD = "seven quiet green lamps"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("dashboard")
    port = free_port()
    daemon = Daemon(
        folder,
        module_database,
        {
            "delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}},
            "sandbox": {"listen": [f"tcp:{port}:interface=127.0.0.1"]},
            "": {"sender": "mailsvc <no-reply@mailsvc.example>"},
            "dashboard": {"sign_up": True},
            "smtp": {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
        },
    )
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def owner(daemon: Daemon) -> Visitor:
    """The first account's admin, signed in."""
    visitor = Visitor(daemon)
    assert visitor.sign_in(daemon.facts["sign_in"]).location == "/dashboard"
    visitor.get("/dashboard/emails")
    return visitor


@pytest.fixture(scope="module")
def outsider(daemon: Daemon) -> Visitor:
    """The admin of another account, who signed up."""
    return signed_up(daemon, "outsider@example.net")


@pytest.fixture(scope="module")
def email(daemon: Daemon) -> str:
    """An email of the first account, that tries to run script."""
    html = "<html><head></head><body><script>fetch('/dashboard')</script><img src=https://tracker.example/x><b>Hi</b></body></html>"
    mail = {"from": f"a@{daemon.facts['domain']}", "to": "ann@example.com", "subject": "<b>Hello</b>", "html": html}
    return str(daemon.call("POST", "/emails", mail).body["id"])


def signed_up(daemon: Daemon, address: str) -> Visitor:
    visitor = Visitor(daemon)
    visitor.get("/dashboard/sign-up")
    assert "Check your inbox" in visitor.post("/dashboard/sign-up", {"email": address}).text
    path = mailed_link(daemon, address, "/dashboard/sign-up/finish")
    assert address in visitor.get(path).text
    form = {"link": path.partition("=")[2], "name": "Sam", "account": "Other", "password": PASSWORD}
    shown = visitor.post("/dashboard/sign-up/finish", form)
    assert (shown.status, shown.location) == (303, "/dashboard"), shown.text
    visitor.get("/dashboard/emails")
    return visitor


def text_of(shown: Shown) -> str:
    """The page without what differs in every request."""
    return re.sub(r'name="token" value="[0-9a-f]+"', "", shown.text)


# Signing in


def test_the_root_leads_to_the_dashboard_and_that_to_the_sign_in(daemon: Daemon) -> None:
    visitor = Visitor(daemon)
    assert visitor.get("/").location == "/dashboard"
    assert visitor.get("/dashboard").location == "/dashboard/sign-in?next=%2Fdashboard"
    shown = visitor.get("/dashboard/emails?status=bounced&q=a%40b")
    assert shown.location == "/dashboard/sign-in?next=%2Fdashboard%2Femails%3Fstatus%3Dbounced%26q%3Da%2540b"


def test_a_sign_in_link_works_once_and_looking_at_it_does_not_use_it_up(daemon: Daemon) -> None:
    visitor = signed_up(daemon, "once@example.net")
    visitor.post("/dashboard/sign-in/out")
    visitor.get("/dashboard/reset")
    visitor.post("/dashboard/reset", {"email": "once@example.net"})
    path = mailed_link(daemon, "once@example.net", "/dashboard/reset/finish")
    for _ in range(2):
        assert visitor.get(path).status == 200
    form = {"link": path.partition("=")[2], "password": "another four good words"}
    assert visitor.post("/dashboard/reset/finish", form).status == 303
    assert Visitor(daemon).get(path).status == 410
    assert Visitor(daemon).with_password("once@example.net", PASSWORD).status == 422
    assert Visitor(daemon).with_password("once@example.net", "another four good words").location == "/dashboard"


def test_the_response_does_not_reveal_whether_an_address_is_registered(daemon: Daemon, outsider: Visitor) -> None:
    known, unknown = Visitor(daemon), Visitor(daemon)
    one, other = known.with_password("outsider@example.net", "wrong"), unknown.with_password("nobody11@example.net", "wrong")
    assert one.status == other.status == 422
    assert text_of(one).replace("outsider@", "") == text_of(other).replace("nobody11@", "")
    for path in ("/dashboard/reset", "/dashboard/sign-up"):
        known.get(path)
        unknown.get(path)
        one, other = known.post(path, {"email": "outsider@example.net"}), unknown.post(path, {"email": "nobody11@example.net"})
        assert one.status == other.status == 200
        assert text_of(one).replace("outsider@", "") == text_of(other).replace("nobody11@", "")


def test_guessing_gets_slower_for_the_guesser_and_not_for_who_signed_in_before(daemon: Daemon) -> None:
    owner = signed_up(daemon, "guessed@example.net")
    owner.post("/dashboard/sign-in/out")
    guesser = Visitor(daemon)
    statuses = [guesser.with_password("guessed@example.net", f"guess {n}").status for n in range(7)]
    assert statuses[0] == 422 and statuses[-1] == 429
    assert Visitor(daemon).with_password("guessed@example.net", PASSWORD).status == 429
    assert owner.with_password("guessed@example.net", PASSWORD).location == "/dashboard"


def test_a_bad_password_is_refused_beside_its_field_and_what_was_typed_stays(daemon: Daemon) -> None:
    visitor = Visitor(daemon)
    visitor.get("/dashboard/sign-up")
    visitor.post("/dashboard/sign-up", {"email": "weak@example.net"})
    path = mailed_link(daemon, "weak@example.net", "/dashboard/sign-up/finish")
    visitor.get(path)
    for password in ("short", "password123", "weak@example.net"):
        shown = visitor.post(
            "/dashboard/sign-up/finish", {"link": path.partition("=")[2], "name": "Wim", "account": "X", "password": password}
        )
        assert shown.status == 422
        assert 'aria-invalid="true"' in shown.text and 'value="Wim"' in shown.text
        assert password not in shown.text or password == "weak@example.net"


def test_a_second_factor_is_required_and_each_code_is_accepted_once(daemon: Daemon) -> None:
    visitor = signed_up(daemon, "totp@example.net")
    page = visitor.get("/dashboard/settings/security/totp").text
    secret = re.search(r'id="secret">([A-Z2-7]+)<', page)[1]  # type: ignore[index]
    assert visitor.post("/dashboard/settings/security/totp", {"code": "000000"}).status == 422
    code = pyotp.TOTP(secret).now()
    codes = re.findall(r"<li>([a-z2-7]{4}-[a-z2-7]{4}-[a-z2-7]+)", visitor.post("/dashboard/settings/security/totp", {"code": code}).text)
    assert len(set(codes)) == 10
    again = Visitor(daemon)
    assert again.with_password("totp@example.net", PASSWORD).location.startswith("/dashboard/sign-in/code")
    assert again.get("/dashboard/emails").location.startswith("/dashboard/sign-in/code")
    half = again.cookies["mailsvc"]
    assert again.post("/dashboard/sign-in/code", {"code": code}).status == 403  # the token of the page before
    again.get("/dashboard/sign-in/code")
    assert again.post("/dashboard/sign-in/code", {"code": code}).status == 422  # taken already
    assert again.post("/dashboard/sign-in/code", {"code": codes[0], "next": "/dashboard/keys"}).location == "/dashboard/keys"
    assert again.cookies["mailsvc"] != half
    third = Visitor(daemon)
    third.with_password("totp@example.net", PASSWORD)
    third.get("/dashboard/sign-in/code")
    assert third.post("/dashboard/sign-in/code", {"code": codes[0]}).status == 422


# What must not be possible


def test_a_session_is_new_at_every_sign_in_and_ends_at_the_server(daemon: Daemon, outsider: Visitor) -> None:
    visitor = Visitor(daemon, {"mailsvc": "planted"})
    visitor.with_password("outsider@example.net", PASSWORD)
    session = visitor.cookies["mailsvc"]
    assert session != "planted" and len(session) >= 43
    visitor.get("/dashboard/emails")
    visitor.post("/dashboard/sign-in/out")
    assert Visitor(daemon, {"mailsvc": session}).get("/dashboard/emails").status == 303


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)
def test_a_form_of_another_site_is_refused(owner: Visitor, headers: dict[str, str]) -> None:
    assert owner.post("/dashboard/keys", {"name": "stolen", "permission": "full_access"}, headers).status == 403
    assert "stolen" not in owner.get("/dashboard/keys").text


def test_a_form_needs_the_token_of_this_session(owner: Visitor, outsider: Visitor) -> None:
    for token in ("", "0" * 64, outsider.token):
        assert owner.post("/dashboard/keys", {"name": "stolen", "permission": "full_access"}, token=token).status == 403
    wrong_type = owner.post("/dashboard/keys", {}, {"Content-Type": "application/json"})
    assert wrong_type.status == 415
    assert "stolen" not in owner.get("/dashboard/keys").text


def test_nothing_changes_by_looking(owner: Visitor, email: str) -> None:
    for path in (f"emails/{email}/cancel", "sign-in/out", "settings/invite", "settings/security/totp/off", "theme"):
        assert owner.get(f"/dashboard/{path}").status in (404, 405)
    assert owner.get("/dashboard/emails").status == 200


def test_another_accounts_ids_are_not_there(owner: Visitor, outsider: Visitor, daemon: Daemon, email: str) -> None:
    daemon.until("/sandbox/emails", daemon.facts["api_key"], lambda body: any(mail["email_id"] == email for mail in body["data"]))
    inbox = owner.get("/dashboard/sandbox").text
    ids = {
        "domains": re.search(r"/dashboard/domains/([0-9a-f-]{36})", owner.get("/dashboard/domains").text),
        "sandbox": re.search(r"/dashboard/sandbox/([0-9a-f-]{36})", inbox),
        "keys": re.search(r"/dashboard/keys/([0-9a-f-]{36})", owner.get("/dashboard/keys").text),
        "members": re.search(r"/dashboard/settings/members/([0-9a-f-]{36})", owner.get("/dashboard/settings").text),
        "sessions": None,
    }
    found = {name: match[1] for name, match in ids.items() if match}
    assert set(found) == {"domains", "sandbox", "keys", "members"}
    seen = [f"emails/{email}{rest}" for rest in ("", "/preview", "/source", "/files/0")]
    seen += [f"domains/{found['domains']}", f"sandbox/{found['sandbox']}", f"sandbox/{found['sandbox']}/preview"]
    for path in seen:
        assert owner.get(f"/dashboard/{path}").status == 200 or path.endswith("/files/0")
        assert outsider.get(f"/dashboard/{path}").status == 404, path
    outsider.get("/dashboard/keys")
    changes = [f"emails/{email}/cancel", f"emails/{email}/reschedule", f"emails/{email}/share", f"keys/{found['keys']}/revoke"]
    changes += [f"domains/{found['domains']}/{what}" for what in ("verify", "change", "rotate", "delete")]
    changes += [f"settings/members/{found['members']}/{what}" for what in ("role", "remove")]
    changes += ["settings/show"]
    form = {"at": "2030-01-01T00:00", "name": "mailsvc.example", "account": daemon.facts["account_id"]}
    for path in changes:
        assert outsider.post(f"/dashboard/{path}", form).status == 404, path
    assert daemon.call("GET", f"/emails/{email}").status == 200
    assert "No results" in outsider.get(f"/dashboard/emails?q={email}").text


@pytest.mark.parametrize(
    "next_", ["//evil.example", "https://evil.example/dashboard", "/\\evil.example", "/dashboard//evil", "/dashboard\r\nX: y"]
)
def test_nobody_is_sent_to_another_site(daemon: Daemon, outsider: Visitor, next_: str) -> None:
    visitor = Visitor(daemon)
    visitor.get("/dashboard/sign-in")
    shown = visitor.post("/dashboard/sign-in", {"email": "outsider@example.net", "password": PASSWORD, "next": next_})
    assert shown.location == "/dashboard"
    assert outsider.post("/dashboard/theme", {"theme": "dark", "back": next_}).location == "/dashboard"


def test_every_page_has_the_headers_that_protect_it(owner: Visitor, daemon: Daemon, email: str) -> None:
    paths = ["", "/emails", f"/emails/{email}", "/domains", "/keys", "/metrics", "/sandbox", "/settings", "/settings/security", "/nothing"]
    for shown in [owner.get(f"/dashboard{path}") for path in paths] + [Visitor(daemon).get("/dashboard/sign-in")]:
        csp = shown.headers["content-security-policy"]
        assert "default-src 'none'" in csp and "'unsafe" not in csp and "frame-ancestors 'none'" in csp and "base-uri 'none'" in csp
        assert shown.headers["x-content-type-options"] == "nosniff"
        assert shown.headers["referrer-policy"] == "same-origin"
        assert shown.headers["cross-origin-opener-policy"] == "same-origin"
        assert shown.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son[a-z]+=", shown.text)


def test_a_preview_has_no_origin_and_loads_nothing(owner: Visitor, email: str) -> None:
    shown = owner.get(f"/dashboard/emails/{email}/preview")
    csp = shown.headers["content-security-policy"]
    assert csp.startswith("sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'")
    assert "allow-scripts" not in csp and "allow-same-origin" not in csp and "script-src" not in csp and "https:" not in csp
    assert "img-src data: https: http:" in owner.get(f"/dashboard/emails/{email}/preview?images=1").headers["content-security-policy"]
    page = owner.get(f"/dashboard/emails/{email}").text
    assert "<b>Hello</b>" not in page and "&lt;b&gt;Hello&lt;/b&gt;" in page


def test_an_email_is_sent_again_once_as_a_new_one_with_the_same_content(owner: Visitor, outsider: Visitor, daemon: Daemon) -> None:
    files = [{"filename": "a.txt", "content": "aGVsbG8="}]
    mail = {"from": f"Shop <a@{daemon.facts['domain']}>", "to": ["one@example.com"], "bcc": ["two@example.com"], "subject": "Twice"}
    more = {"html": "<p>Hi</p>", "attachments": files, "tags": [{"name": "kind", "value": "test"}], "headers": {"X-Mine": "kept"}}
    first = str(daemon.call("POST", "/emails", mail | more).body["id"])
    path = f"/dashboard/emails/{first}"
    once = re.search(r'name="once" value="(\w+)"', owner.get(path).text)
    assert once
    shown = owner.post(f"{path}/again", {"once": once[1], "to": ""})
    assert owner.post(f"{path}/again", {"once": once[1], "to": ""}).location == shown.location != f"{path}?done=again"
    assert owner.post(f"{path}/again", {"once": once[1], "to": "two@example.com"}).status == 422
    assert owner.post(f"{path}/again", {"to": "three@example.com"}).status == 404
    assert outsider.post(f"{path}/again", {}).status == 404
    second = shown.location.split("/")[-1].partition("?")[0]
    assert "its own ID" in owner.get(shown.location).text
    key = daemon.facts["api_key"]
    found = daemon.until(f"/emails/{second}", key, lambda body: body["last_event"] == "delivered")
    assert found["subject"] == "Twice" and found["tags"] == more["tags"] and found["message_id"] == f"<{second}@{daemon.facts['domain']}>"
    inbox = daemon.until("/sandbox/emails", key, lambda body: any(mail["email_id"] == second for mail in body["data"]))
    raw = [daemon.call("GET", f"/sandbox/emails/{mail['id']}").body for mail in inbox["data"] if mail["email_id"] == second]
    assert {to for mail in raw for to in mail["to"]} == {"one@example.com", "two@example.com"}
    for mail in raw:
        assert mail["raw"].count("Message-ID:") == mail["raw"].count("Date:") == 1 and first not in mail["raw"]
        assert "X-Mine: kept" in mail["raw"] and "aGVsbG8=" in mail["raw"] and "two@example.com" not in mail["raw"]
        assert mail["dkim"] and all(verdict["result"] == "pass" for verdict in mail["dkim"])
    log = owner.get("/dashboard/settings/audit.csv").text
    assert f"email resent,{first} as {second}" in log


def test_who_asks_for_a_part_of_a_page_is_sent_elsewhere_as_a_whole(daemon: Daemon, owner: Visitor, email: str) -> None:
    """A redirect would be followed by the browser itself, and end in the middle of the page."""
    response = Visitor(daemon).get("/dashboard/emails?status=sent", {"HX-Request": "true"})
    assert (response.status, response.text) == (200, "") and response.headers[
        "hx-redirect"
    ] == "/dashboard/sign-in?next=%2Fdashboard%2Femails%3Fstatus%3Dsent"
    assert owner.get(f"/dashboard/emails?q={email}", {"HX-Request": "true"}).headers["hx-redirect"] == f"/dashboard/emails/{email}"
    assert 'id="list"' in owner.get("/dashboard/emails?status=sent", {"HX-Request": "true"}).text


def test_static_files_are_cached_forever_and_compressed_if_accepted(daemon: Daemon) -> None:
    page = Visitor(daemon).get("/dashboard/sign-in").text
    files = re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', page)
    names = {"mark.svg", "inter-latin.woff2", "font.css", "dashboard.css", "htmx.min.js", "dashboard.js", "kept-forms.js"}
    assert {path.rpartition("/")[2] for path in files} == names
    for path in files:
        plain, packed = Visitor(daemon).get(path), Visitor(daemon).get(path, {"Accept-Encoding": "br, gzip"})
        assert plain.status == packed.status == 200 and plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
        assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
        assert "immutable" in plain.headers["cache-control"] and "set-cookie" not in plain.headers
    assert Visitor(daemon).get("/dashboard/static/0/htmx.min.js").status == 404


def test_an_email_that_waits_says_why_and_until_when(owner: Visitor, daemon: Daemon) -> None:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": ["delayed@example.com"], "subject": "Wait", "text": "x"}
    mail["attachments"] = [{"filename": "a<b>.txt", "content": "aGVsbG8="}]
    email_id = daemon.call("POST", "/emails", mail).body["id"]
    daemon.until(f"/emails/{email_id}", daemon.facts["api_key"], lambda body: body["last_event"] == "delivery_delayed")
    page = owner.get(f"/dashboard/emails/{email_id}").text
    assert re.search(r'class="reason warn">127\.0\.0\.1 answered 4\d\d', page) and "Next attempt in" in page and "1 attempt so far" in page
    assert "SMTP transcript" in page and 'hx-trigger="every 2s"' in page
    file = owner.get(f"/dashboard/emails/{email_id}/files/0")
    assert file.text == "hello" and file.headers["content-disposition"] == 'attachment; filename="a_b_.txt"'
    assert "sandbox" in file.headers["content-security-policy"]
    source = owner.get(f"/dashboard/emails/{email_id}/source")
    assert source.headers["content-disposition"].endswith('.eml"') and "Subject: Wait" in source.text
    assert 'tabindex="0">x</pre>' in owner.get(f"/dashboard/emails/{email_id}?view=text").text


def test_a_domain_is_deleted_by_its_name_alone(daemon: Daemon, owner: Visitor) -> None:
    owner.get("/dashboard/domains")
    one = owner.post("/dashboard/domains", {"name": "gone.mailsvc-example.com"}).location
    wrong = owner.post(f"{one}/delete", {"name": "other.example.com"})
    assert wrong.status == 422 and 'value="other.example.com" aria-invalid="true"' in wrong.text
    assert owner.post(f"{one}/delete", {"name": "Gone.mailsvc-example.com"}).location.endswith("done=deleted")
    assert owner.get(one).status == 404


def test_an_email_is_shared_by_a_link_that_ends(owner: Visitor, outsider: Visitor, email: str) -> None:
    owner.get(f"/dashboard/emails/{email}")
    assert outsider.post(f"/dashboard/emails/{email}/share", {"hours": "1"}).status == 404
    assert owner.post(f"/dashboard/emails/{email}/share", {"hours": "9999"}).status == 422
    owner.get(f"/dashboard/emails/{email}")
    link = re.search(
        r'id="shared">http://127.0.0.1:\d+(/shared\?token=[\w-]+)<', owner.post(f"/dashboard/emails/{email}/share", {"hours": "24"}).text
    )
    assert link
    shown = Visitor(owner.daemon).get(link[1])
    assert shown.status == 200 and "&lt;b&gt;Hello&lt;/b&gt;" in shown.text
    assert Visitor(owner.daemon).get(f"{link[1]}x").status == 403
    owner.get(f"/dashboard/emails/{email}")
    assert f"email shared,{email} for 24 hours" in owner.get("/dashboard/settings/audit.csv").text


def test_a_scheduled_email_can_be_rescheduled_and_canceled_in_the_dashboard(owner: Visitor, daemon: Daemon) -> None:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": "later@example.com", "subject": "Later", "text": "x", "scheduled_at": "in 5 hours"}
    path = f"/dashboard/emails/{daemon.call('POST', '/emails', mail).body['id']}"
    assert "Reschedule" in owner.get(path).text
    assert owner.post(f"{path}/reschedule", {"at": "no time"}).status == 422
    at = f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%dT%H:%M}"
    assert owner.post(f"{path}/reschedule", {"at": at}).location.endswith("done=rescheduled")
    assert at.replace("T", " ") in owner.get(path).text
    assert owner.post(f"{path}/cancel").location.endswith("done=canceled")
    assert owner.post(f"{path}/reschedule", {"at": at}).location.endswith("done=too_late")
    assert owner.post(f"{path}/cancel").location.endswith("done=too_late")


def test_settings_show_the_usage_and_how_to_log_in_over_smtp(daemon: Daemon, owner: Visitor, email: str) -> None:
    def used() -> int:
        return int(re.search(r"<dt>Today</dt><dd>([\d,]+)", owner.get("/dashboard/settings/usage").text)[1].replace(",", ""))  # type: ignore[index]

    daemon.until("/usage", daemon.facts["api_key"], lambda body: body["emails"]["daily"]["used"] > 0)
    assert used() > 0
    daemon.command("account", "plan", "1", "50k")
    assert daemon.call("GET", "/usage").body["emails"]["monthly"]["used"] > 0
    page = owner.get("/dashboard/settings/usage").text
    assert '<span class="dim">of 50,000</span>' in page and 'Your plan is <span class="strong">50k</span>' in page
    page = owner.get("/dashboard/settings/smtp").text
    assert "nodemailer" in page and "ms_…" in page and 'id="key"' not in page
    page = owner.post("/dashboard/settings/smtp").text
    secret = re.search(r'id="key">(ms_\w+)<', page)[1]  # type: ignore[index]
    assert page.count(secret) == 6  # and once in each snippet
    assert daemon.call("POST", "/emails", {}, key=secret).status == 422
    assert secret not in owner.get("/dashboard/settings/smtp").text


def test_what_the_service_writes_to_people_is_not_shown(owner: Visitor, outsider: Visitor) -> None:
    sql = "SELECT email_id::text FROM emails WHERE source = 'dashboard' AND recipients = '{outsider@example.net}' LIMIT 1"
    [(email_id,)] = rows(owner.daemon.database, sql)
    for path in ("/dashboard", "/dashboard/emails", "/dashboard/emails?q=outsider%40example.net", f"/dashboard/emails?q={email_id}"):
        assert email_id not in owner.get(path).text.replace(f'value="{email_id}"', "").replace(f"q={email_id}", ""), path
    assert "Only the recipient can read" in owner.get(f"/dashboard/emails/{email_id}").text
    assert owner.get(f"/dashboard/emails/{email_id}/source").status == 404
    for what in ("again", "share"):
        assert owner.post(f"/dashboard/emails/{email_id}/{what}").status == 404


def test_a_cookie_is_for_http_alone(daemon: Daemon) -> None:
    shown = Visitor(daemon).get("/dashboard/sign-in")
    assert re.search(r"; Path=/; HttpOnly; SameSite=Lax", shown.headers["set-cookie"])


# Members


def test_an_invited_member_is_no_admin(daemon: Daemon, owner: Visitor) -> None:
    owner.get("/dashboard/settings")
    assert owner.post("/dashboard/settings/invite", {"email": "new@example.net", "role": "developer"}).location.endswith("done=invited")
    path = mailed_link(daemon, "new@example.net", "/dashboard/invitation")
    member = Visitor(daemon)
    member.get(path)
    assert member.post(path, {"name": "New", "password": PASSWORD}).location == "/dashboard"
    page = member.get("/dashboard/settings").text
    assert "you@mailsvc.example" in page and "Invite a teammate" not in page
    mine = re.search(r"members/([0-9a-f-]{36})/remove", page)[1]  # type: ignore[index]
    for path, form in (("invite", {"email": "x@example.net"}), ("account", {"name": "Mine"}), (f"members/{mine}/role", {"role": "admin"})):
        assert member.post(f"/dashboard/settings/{path}", form).status == 403
    assert member.get("/dashboard/settings/audit").status == 403
    log = owner.get("/dashboard/settings/audit.csv").text
    assert "member invited,new@example.net as developer" in log and "invitation accepted" in log
    assert Visitor(daemon).get(path if path.startswith("/dash") else "/dashboard/invitation?link=x").status in (404, 410)


def test_the_last_admin_stays(daemon: Daemon, owner: Visitor) -> None:
    page = owner.get("/dashboard/settings").text
    mine = re.search(r"members/([0-9a-f-]{36})/role", page)[1]  # type: ignore[index]
    assert owner.post(f"/dashboard/settings/members/{mine}/role", {"role": "developer"}).location.endswith("done=last")
    assert owner.post(f"/dashboard/settings/members/{mine}/remove").location.endswith("done=last")


def test_signing_out_everywhere_ends_the_other_sessions(daemon: Daemon) -> None:
    first = signed_up(daemon, "everywhere@example.net")
    second = Visitor(daemon)
    second.with_password("everywhere@example.net", PASSWORD)
    assert second.get("/dashboard/settings/security").text.count("Firefox on Linux") >= 2
    second.post("/dashboard/settings/security/sessions/others/end")
    assert first.get("/dashboard/emails").status == 303
    assert second.get("/dashboard/emails").status == 200


def test_a_webhook_is_sent_again_and_a_suppression_is_added_and_removed(daemon: Daemon, owner: Visitor, outsider: Visitor) -> None:
    owner.get("/dashboard/webhooks")
    wrong = owner.post("/dashboard/webhooks", {"url": "ftp://example.com", "on:email.sent": "1"})
    assert wrong.status == 422 and "must begin with" in wrong.text and "ftp://example.com" in wrong.text
    added = owner.post("/dashboard/webhooks", {"url": "https://hooks.example.com/in", "on:email.delivered": "1"})
    assert re.fullmatch(r"/dashboard/webhooks/[0-9a-f-]{36}", added.location)
    assert owner.get(f"{added.location}/secret").text.count("whsec_") == 1
    assert owner.post(f"{added.location}/test").location.endswith("done=test")
    event = re.search(r"/dashboard/webhooks/[0-9a-f-]{36}/events/[0-9a-f-]{36}", owner.get(added.location).text)
    assert event and "&#34;type&#34;: &#34;email.delivered&#34;" in owner.get(event[0]).text
    assert owner.post(f"{event[0]}/replay").location.endswith("done=again")
    for path in (added.location, event[0]):
        assert outsider.get(path).status == 404
    for what in ("change", "test", "delete"):
        assert outsider.post(f"{added.location}/{what}", {"url": "https://a.example", "on:email.sent": "1"}).status == 404
    wrong = owner.post(f"{added.location}/change", {"url": "https://a.example:99999", "on:email.bounced": "1", "enabled": "on"})
    assert wrong.status == 422 and 'value="https://a.example:99999" aria-invalid="true"' in wrong.text and "Signing secret" in wrong.text
    assert wrong.text.count(" checked") == 2  # what was chosen, and that it is enabled
    assert owner.post(f"{added.location}/delete").location.endswith("done=deleted")
    owner.get("/dashboard/suppressions")
    assert owner.post("/dashboard/suppressions", {"emails": "no address"}).status == 422
    assert owner.post("/dashboard/suppressions", {"emails": "Never@example.com, other@example.com"}).status == 303
    page = owner.get("/dashboard/suppressions?q=never%40example.com").text
    entry = re.search(r"suppressions/([0-9a-f-]{36})/remove", page)[1]  # type: ignore[index]
    assert outsider.post(f"/dashboard/suppressions/{entry}/remove").status == 404
    owner.post(f"/dashboard/suppressions/{entry}/remove")
    assert "Never@example.com" not in owner.get("/dashboard/suppressions").text


def test_saving_a_webhook_keeps_events_that_the_form_does_not_show(daemon: Daemon, owner: Visitor) -> None:
    given: dict[str, object] = {"endpoint": "https://hooks.example.com/kept", "events": ["email.sent", "inbox.created"]}
    webhook = daemon.call("POST", "/webhooks", given).body["id"]
    path = f"/dashboard/webhooks/{webhook}"
    owner.get(path)
    form = {"url": given["endpoint"], "on:email.bounced": "1", "enabled": "on"}
    assert owner.post(f"{path}/change", form).location.endswith("done=changed")
    assert daemon.call("GET", f"/webhooks/{webhook}").body["events"] == ["email.bounced", "inbox.created"]


def test_a_request_is_logged_for_its_account_alone(daemon: Daemon, owner: Visitor, outsider: Visitor) -> None:
    assert daemon.call("POST", "/emails", {"from": "nobody", "to": "a@example.com"}).status == 422
    daemon.until("/logs?limit=1", daemon.facts["api_key"], lambda body: bool(body["data"]))
    found = None
    while found is None:
        found = re.search(r"/dashboard/logs/[0-9a-f-]{36}", owner.get("/dashboard/logs?status=errors").text)
    page = owner.get(found[0]).text
    assert "POST /emails" in page and "422" in page
    assert outsider.get(found[0]).status == 404 and "No logs yet" in outsider.get("/dashboard/logs").text


def test_emails_are_exported_as_the_list_shows_them(daemon: Daemon, owner: Visitor, outsider: Visitor, email: str) -> None:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": ["ann@example.com", "bob@example.com"], "subject": "=SUM(1), taken", "text": "x"}
    ids = [str(daemon.call("POST", "/emails", mail).body["id"]) for _ in range(3)]
    begun = owner.get("/dashboard/emails/export?q=taken&status=nothing").location
    assert re.fullmatch(r"/dashboard/emails/export\?q=taken&id=[0-9a-f-]{36}", begun)
    assert "Not started" in owner.get(begun).text
    taken = owner.post(begun)
    assert taken.status == 200 and re.fullmatch(r'attachment; filename="emails-[\d-]+\.csv"', taken.headers["content-disposition"])
    exported = list(csv.DictReader(io.StringIO(taken.text)))
    assert [row["id"] for row in exported] == ids[::-1]
    assert {(row["subject"], row["recipients"], row["domain"]) for row in exported} == {
        ("'=SUM(1), taken", "ann@example.com, bob@example.com", daemon.facts["domain"])
    }
    page = owner.get(begun).text
    assert "Done" in page and "<strong>3</strong> rows" in page and "hx-get" not in page
    assert "Not started" in outsider.get(begun).text and len(outsider.post(begun).text.splitlines()) == 1
    everything = owner.get("/dashboard/emails/export").location
    assert email in owner.post(everything).text
    assert "emails exported,Text: taken" in owner.get("/dashboard/settings/audit.csv").text
    assert owner.post("/dashboard/emails/export").status == 404


def test_logs_show_requests_and_sessions_and_can_be_exported(daemon: Daemon, owner: Visitor, outsider: Visitor) -> None:
    with smtplib.SMTP("127.0.0.1", daemon.facts["smtp"]["587"]) as relay:
        relay.starttls()
        relay.login("mailsvc", daemon.facts["api_key"])
        relay.sendmail("a@x.example", ["ann@example.com"], f"From: a@{daemon.facts['domain']}\r\nSubject: By SMTP\r\n\r\nHi\r\n")
    daemon.until("/logs?source=smtp", daemon.facts["api_key"], lambda body: bool(body["data"]))
    page = owner.get("/dashboard/logs?source=smtp").text
    found = re.search(r"/dashboard/logs/[0-9a-f-]{36}", page)
    assert found and "1 email" in page and "POST /emails" not in page
    session = owner.get(found[0]).text
    assert "mail from" in session.lower() and daemon.facts["api_key"] not in session
    created = re.search(r"/dashboard/emails/[0-9a-f-]{36}", session)
    assert created and "By SMTP" in owner.get(created[0]).text
    assert outsider.get(found[0]).status == 404
    assert "POST /emails" in owner.get("/dashboard/logs?source=api&q=post").text
    assert "No requests or sessions" in owner.get("/dashboard/logs?status=418").text
    exported = list(csv.DictReader(io.StringIO(owner.post(owner.get("/dashboard/logs/export?source=smtp").location).text)))
    assert exported and {row["source"] for row in exported} == {"smtp"} and exported[0]["mails"] == "1"


# Pages beside the API


def test_the_api_is_as_it_was(daemon: Daemon) -> None:
    for path in ("//dashboard", "/dashboards", "/nothing"):
        answer = daemon.call("GET", path)
        assert answer.status == 404 and answer.body["name"] == "not_found"


def test_a_key_is_shown_once_and_works(daemon: Daemon, owner: Visitor) -> None:
    owner.get("/dashboard/keys")
    page = owner.post("/dashboard/keys", {"name": "Shop", "permission": "full_access"}).text
    secret = re.search(r'id="key">(ms_\w+)<', page)[1]  # type: ignore[index]
    assert daemon.call("GET", "/emails", key=secret).status == 200
    page = owner.get("/dashboard/keys").text
    assert secret not in page
    key = re.search(r"Revoke Shop.*?|", page) and re.findall(r"keys/([0-9a-f-]{36})/revoke", page)[0]
    owner.post(f"/dashboard/keys/{key}/revoke")
    assert daemon.call("GET", "/emails", key=secret).status == 403


def test_emails_are_found_by_recipient_subject_id_and_status(daemon: Daemon, owner: Visitor, email: str) -> None:
    daemon.until(f"/emails/{email}", daemon.facts["api_key"], lambda body: body["last_event"] == "delivered")
    for query in ("q=ANN%40example", "q=hello", "status=delivered", "days=1&q=ann"):
        assert email in owner.get(f"/dashboard/emails?{query}").text, query
    for query in ("q=somebody-else", "status=bounced"):
        assert email not in owner.get(f"/dashboard/emails?{query}").text, query
    assert owner.get(f"/dashboard/emails?q={email}").location == f"/dashboard/emails/{email}"
    page = owner.get(f"/dashboard/emails/{email}").text
    assert "Attempt 1" in page and "SMTP transcript" in page and "MAIL FROM" in page
