"""Asynchronous bounces: reports sent over SMTP to our return paths, and the states that they give recipients."""

from __future__ import annotations

import re
import smtplib
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bounces.test_families import FAMILIES, sample
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.test_monitoring import Local, answer


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    port, folder = free_port(), tmp_path_factory.mktemp("returns")
    changes = {
        "smtp": {"listen": {"25": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
        "sandbox": {"listen": [f"tcp:{port}:interface=127.0.0.1"]},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}},
        "metrics": {"listen": [f"unix:{folder}/metrics.sock"]},
    }
    daemon = Daemon(folder, module_database, changes)
    daemon.start()
    yield daemon
    daemon.stop()


def send(daemon: Daemon, *to: str) -> str:
    body = {"from": f"shop@{daemon.facts['domain']}", "to": list(to), "subject": "Hello", "text": "Hi."}
    answer = daemon.call("POST", "/emails", body)
    assert answer.status == 200, answer
    return str(answer.body["id"])


def waited(daemon: Daemon, path: str, enough: Callable[[Any], bool]) -> Any:
    return daemon.until(path, daemon.facts["api_key"], enough)


def recipients(daemon: Daemon, email_id: str, *statuses: str) -> list[dict[str, Any]]:
    """Those of an email, once they are in these states."""
    found = daemon.until(
        f"/emails/{email_id}", daemon.facts["api_key"], lambda body: [each["status"] for each in body["recipients"]] == [*statuses]
    )
    return list(found["recipients"])


def return_path(daemon: Daemon, email_id: str) -> str:
    found = daemon.until(
        "/sandbox/emails?limit=100", daemon.facts["api_key"], lambda body: any(mail["email_id"] == email_id for mail in body["data"])
    )
    return next(str(mail["from"]) for mail in found["data"] if mail["email_id"] == email_id)


def come_back(daemon: Daemon, to: str, message: str, sender: str = "") -> int:
    """Mail to a return path; the code that it came to."""
    with smtplib.SMTP("127.0.0.1", daemon.facts["smtp"]["25"]) as client:
        client.ehlo("mx.example.net")
        assert client.docmd(f"MAIL FROM:<{sender}>")[0] == 250
        code, _ = client.docmd(f"RCPT TO:<{to}>")
        return code if code != 250 else client.data(message.replace("\n", "\r\n").encode())[0]


def counted(daemon: Daemon) -> Counter[str]:
    """What came back so far, as the monitor reads it."""
    found = re.findall(r'mailsvc_returned_total\{kind="(\w+)"\} ([0-9.]+)', answer(Local(daemon.folder / "metrics.sock"))[1])
    return Counter({kind: int(float(value)) for kind, value in found})


DSN = """\
From: <mailer-daemon@mx.example.net>
Content-Type: multipart/report; report-type=delivery-status; boundary=b

--b
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.net

Final-Recipient: rfc822; {recipient}
Action: failed
Status: 5.2.2
Diagnostic-Code: smtp; 552 5.2.2 Over quota

--b--
"""


def test_requested_notifications_report_the_outcome(daemon: Daemon) -> None:
    """The sandbox offers DSN: of the delivery it tells itself, and that goes on to the envelope sender, whoever it is."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    me, asking = f"me@{daemon.facts['domain']}", "asking@elsewhere.example"
    with smtplib.SMTP("127.0.0.1", daemon.facts["smtp"]["25"]) as client:
        client.starttls(context=context)
        client.login(daemon.facts["smtp_username"], daemon.facts["api_key"])
        client.mail(asking, ["ENVID=e7", "RET=HDRS"])
        for address, notify in (("fine", "SUCCESS"), ("bounced+notify", "FAILURE"), ("suppressed", "FAILURE"), ("bounced+never", "NEVER")):
            assert (
                client.rcpt(f"{address}@example.com", [f"NOTIFY={notify}", f"ORCPT=rfc822;{address.replace('+', '+2B')}@example.org"])[0]
                == 250
            )
        assert client.data(f"From: {me}\r\nSubject: tell me\r\n\r\nx\r\n")[0] == 250

    def text_of(body: Any) -> str:
        mails = [mail["id"] for mail in body["data"] if asking in mail["to"]]
        return "".join(str(daemon.call("GET", f"/sandbox/emails/{each}").body) for each in mails)

    wanted = [f"{address}@example.com" for address in ("fine", "bounced+notify", "suppressed")]
    found = text_of(waited(daemon, "/sandbox/emails?limit=100", lambda body: all(f"rfc822; {each}" in text_of(body) for each in wanted)))
    assert "Action: delivered" in found and "Remote-MTA: dns; sandbox.localhost" in found and "Action: relayed" not in found
    assert "Original-Envelope-Id: e7" in found and "Original-Recipient: rfc822; fine@example.org" in found
    assert "suppression list" in found and "bounced+never" not in found


def test_a_complaint_comes_back_over_smtp(daemon: Daemon) -> None:
    [recipient] = recipients(daemon, email_id := send(daemon, "complained@example.com"), "complained")
    assert recipient["reason"].startswith("The recipient reported this email as spam: abuse")
    assert daemon.call("GET", f"/emails/{email_id}").body["last_event"] == "complained"


def test_who_complained_is_not_written_to_again(daemon: Daemon) -> None:
    recipients(daemon, send(daemon, "complained+2@example.com"), "complained")
    recipients(daemon, send(daemon, "complained+2@example.com", "a@example.com"), "suppressed", "delivered")
    found = daemon.call("GET", "/suppressions").body["data"]
    assert ("complained+2@example.com", "complaint") in [(each["email"], each["origin"]) for each in found]


def test_the_sandbox_has_an_address_that_is_suppressed(daemon: Daemon) -> None:
    email_id = send(daemon, "suppressed@example.com")
    recipients(daemon, email_id, "suppressed")
    assert daemon.call("GET", f"/emails/{email_id}").body["last_event"] == "suppressed"


def test_a_late_bounce_comes_back_over_smtp(daemon: Daemon) -> None:
    email_id = send(daemon, "delivered@example.com", "bounced-later+x@example.com")
    delivered, bounced = recipients(daemon, email_id, "delivered", "bounced")
    assert delivered["reason"] is None
    assert bounced["reason"].startswith("sandbox.localhost reported later: 550 5.1.1 This sandbox address bounces")
    assert "The mailbox does not exist." in bounced["reason"] and bounced["last_reply"].startswith("550 5.1.1")
    found = waited(daemon, f"/emails/metrics?email_id={email_id}", lambda body: body["totals"]["bounced"] == 1)
    assert (found["totals"]["sent"], found["totals"]["delivered"]) == (2, 1)
    finished = ("delivered", "bounced", "failed")
    waited(daemon, "/emails/metrics", lambda body: body["totals"]["sent"] == sum(body["totals"][name] for name in finished) > 0)


def test_a_refusal_is_explained(daemon: Daemon) -> None:
    [bounced] = recipients(daemon, send(daemon, "bounced+why@example.com"), "bounced")
    assert bounced["last_reply"] == "550 5.1.1 This sandbox address always bounces"
    assert (bounced["class"], bounced["rule"], bounced["must_act"]) == ("user_unknown", "x.1.1", "recipient")
    assert bounced["reason"].endswith(bounced["advice"])
    assert bounced["advice"] == "Check the address with the recipient. Don't send to it again until it is corrected."


def test_only_who_is_named_changes_and_only_once(daemon: Daemon) -> None:
    email_id = send(daemon, "a@example.com", "b@example.com")
    recipients(daemon, email_id, "delivered", "delivered")
    path = return_path(daemon, email_id)
    assert come_back(daemon, path, DSN.format(recipient="c@example.com")) == 250
    for _ in range(2):
        assert come_back(daemon, path, DSN.format(recipient="B@example.com")) == 250
    _, bounced = recipients(daemon, email_id, "delivered", "bounced")
    assert bounced["last_reply"] == "552 5.2.2 Over quota" and "The mailbox is full." in bounced["reason"]


def test_what_nobody_signed_and_what_machines_say_changes_nothing(daemon: Daemon) -> None:
    email_id = send(daemon, "a@example.com")
    recipients(daemon, email_id, "delivered")
    path, before = return_path(daemon, email_id), counted(daemon)
    wrong = path[:49] + ("a" if path[49] != "a" else "b") + path[50:]
    assert come_back(daemon, wrong, DSN.format(recipient="a@example.com")) == 550
    assert come_back(daemon, path, "Subject: Out of office\nAuto-Submitted: auto-replied\n\n550 5.1.1 <a@example.com>\n") == 250
    assert come_back(daemon, path, "Subject: Hello\n\nWho are you?\n") == 250
    assert come_back(daemon, path, "Subject: Hello\n\nWho are you?\n", "rita@example.org") == 550
    recipients(daemon, email_id, "delivered")
    assert counted(daemon) - before == {"forged": 1, "automatic": 1, "unknown": 2}


def test_a_bounce_of_each_family_of_mail_servers(daemon: Daemon) -> None:
    """What is read in each: tests/bounces/test_families. Here, that the outcome reaches the API, and the suppression list."""
    addresses = {name: f"rita-{name}@example.org" for name, (kind, *_) in FAMILIES.items() if kind == "bounce" and name != "base64-filter"}
    sent = {name: send(daemon, address, f"other-{name}@example.org") for name, address in addresses.items()}
    for name, email_id in sent.items():
        recipients(daemon, email_id, "delivered", "delivered")
        bounce = sample(name).decode().replace("\r\n", "\n").replace("rita@example.org", addresses[name])
        assert come_back(daemon, return_path(daemon, email_id), bounce) == 250
    for name in sent:
        found = daemon.call("GET", f"/emails/{sent[name]}").body["recipients"]
        assert [(each["status"], each["class"]) for each in found] == [("bounced", FAMILIES[name][1]), ("delivered", None)], name
    suppressed = {each["email"] for each in daemon.call("GET", "/suppressions?limit=100").body["data"]}
    assert suppressed & {*addresses.values()} == {addresses[name] for name in addresses if FAMILIES[name][2]}
