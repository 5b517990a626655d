"""Double opt-in: the email that asks, the page that it leads to, and that only the button confirms."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.audience.double_opt_in import ConfirmationLinks, ConfirmationSender
from mailsvc.http.resources.audience.assembly import Submission
from mailsvc.incoming import Incoming
from mailsvc.store.audience import evidence as evidence_store
from mailsvc.store.audience.confirmations import Confirmations
from mailsvc.store.audience.evidence import Evidence
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.people.accounts import Accounts
from tests.http.api_rig import ApiRig
from tests.http.resources.audience.test_contacts import make
from tests.http.resources.broadcasts.test_unsubscribe import call
from tests.http.rig import Response
from tests.store.encryption.test_secrets import ENCRYPTION

WORDING = {
    "from": "Acme <news@example.test>",
    "subject": "Please confirm",
    "html": '<p>Hello. <a href="{{{CONFIRM_URL}}}">Confirm</a></p>',
    "text": "Confirm: {{{CONFIRM_URL}}}",
    "title": "Acme <news>",
    "message": "Do you want our newsletter?",
    "button": "Yes & thanks",
    "done": "You get our newsletter.",
}


class Accepting:
    """An intake that notes what it is given."""

    def __init__(self, refusal: str | None = None) -> None:
        self.answer: UUID | str = refusal or UUID(int=7)
        self.emails: list[tuple[UUID, Incoming, str]] = []

    async def submit(self, account_id: UUID, email: Incoming, key: str) -> UUID | str:
        self.emails.append((account_id, email, key))
        return self.answer


def sender(rig: ApiRig, intake: Any) -> ConfirmationSender:
    links = ConfirmationLinks(AudienceKeys(rig.pool, ENCRYPTION), "https://api.example.com")
    return ConfirmationSender(Confirmations(rig.pool), links, intake.submit, rig.site.reactor)


async def asked(rig: ApiRig) -> tuple[str, str, str]:
    """A contact that was asked: its ID, the segment, and the path of the link."""
    segment = await make(rig, "/segments", name="Newsletter", double_opt_in=WORDING)
    contact = await make(rig, "/contacts", email="ada@example.net", segments=[segment])
    intake = Accepting()
    await sender(rig, intake).send_due()
    [(_, email, _)] = intake.emails
    content: Any = email.content
    return contact, segment, re.findall(r"https://api\.example\.com(/confirm\?token=\S+)", content.text)[0]


async def members(rig: ApiRig, segment: str) -> list[str]:
    return [row["email"] for row in (await rig.request("GET", f"/segments/{segment}/contacts")).json["data"]]


async def opened(rig: ApiRig, method: str, path: str) -> Response:
    return await call(rig, method, path)


@pytest_twisted.ensureDeferred
async def test_email_is_the_accounts_own_and_sent_once(rig: ApiRig) -> None:
    segment = await make(rig, "/segments", name="Newsletter", double_opt_in=WORDING)
    await make(rig, "/contacts", email="ada@example.net", segments=[segment])
    intake = Accepting()
    for _ in range(2):
        await sender(rig, intake).send_due()
    [(account_id, email, key)] = intake.emails
    content: Any = email.content
    assert account_id == rig.account_id and key.startswith("confirmation/")
    assert (email.sender.display, email.to[0].address, email.subject) == (WORDING["from"], "ada@example.net", WORDING["subject"])
    assert 'href="https://api.example.com/confirm?token=' in content.html and "{{{" not in content.html + content.text
    assert await rig.pool.rows("SELECT email_id, retry_at FROM confirmations") == [(UUID(int=7), None)]


@pytest_twisted.ensureDeferred
async def test_refused_email_is_tried_again_later(rig: ApiRig) -> None:
    segment = await make(rig, "/segments", name="Newsletter", double_opt_in=WORDING)
    await make(rig, "/contacts", email="ada@example.net", segments=[segment])
    refusing, accepting = Accepting("the domain is not verified"), Accepting()
    for _ in range(2):
        await sender(rig, refusing).send_due()
    assert len(refusing.emails) == 1
    assert await rig.pool.rows("SELECT retry_at > now() + interval '59 minutes' FROM confirmations") == [(True,)]
    await rig.pool.run("UPDATE confirmations SET retry_at = retry_at - interval '1 hour 1 minute'")
    await sender(rig, accepting).send_due()
    assert len(accepting.emails) == 1 and accepting.emails[0][2] == refusing.emails[0][2]


@pytest_twisted.ensureDeferred
async def test_one_that_fails_does_not_hold_up_the_others(rig: ApiRig) -> None:
    segment = await make(rig, "/segments", name="Newsletter", double_opt_in=WORDING)
    for name in ("ada", "bob"):
        await make(rig, "/contacts", email=f"{name}@example.net", segments=[segment])
    tried: list[str] = []

    class Failing:
        async def submit(self, account_id: UUID, email: Incoming, key: str) -> UUID:
            tried.append(email.to[0].address)
            raise EncryptionError("The secret cannot be decrypted.")

    with pytest.raises(EncryptionError):
        await sender(rig, Failing()).send_due()
    assert sorted(tried) == ["ada@example.net", "bob@example.net"]
    await rig.pool.run("UPDATE confirmations SET retry_at = retry_at - interval '2 minutes'")
    accepting = Accepting()  # of another process, as if this one had died
    await sender(rig, accepting).send_due()
    assert len(accepting.emails) == 2


@pytest_twisted.ensureDeferred
async def test_real_intake_accepts_the_email(rig: ApiRig) -> None:
    segment = await make(rig, "/segments", name="Newsletter", double_opt_in=WORDING)
    await make(rig, "/contacts", email="ada@example.net", segments=[segment])
    await sender(rig, Submission(rig.intake, Accounts(rig.pool, rig.site.reactor))).send_due()
    [row] = (await rig.request("GET", "/emails")).json["data"]
    assert (row["subject"], row["to"], row["last_event"]) == ("Please confirm", ["ada@example.net"], "sent")
    sent = (await rig.request("GET", f"/emails/{row['id']}")).json
    assert "/confirm?token=" in sent["text"] and "/confirm?token=" in sent["html"]


@pytest_twisted.ensureDeferred
async def test_the_limits_of_the_account_apply(rig: ApiRig) -> None:
    """The default plan of others, with 5 recipients a day, does not."""
    assert rig.intake.quotas is not None
    rig.intake.quotas.default = "tiny"
    segment = await make(rig, "/segments", name="Newsletter", double_opt_in=WORDING)
    for n in range(8):
        await make(rig, "/contacts", email=f"c{n}@example.net", segments=[segment])
    submission = Submission(rig.intake, Accounts(rig.pool, rig.site.reactor))
    for columns, sent in (("suspended_at = now()", 0), ("suspended_at = NULL, plan = 'few', ramp = 6", 6), ("ramp = NULL", 8)):
        await rig.pool.run(f"UPDATE accounts SET {columns} WHERE id = %s", (rig.account_id,))
        await rig.pool.run("UPDATE confirmations SET retry_at = now() WHERE retry_at IS NOT NULL")
        await sender(rig, submission).send_due()
        assert await rig.pool.rows("SELECT count(*) FROM emails") == [(sent,)]


@pytest_twisted.ensureDeferred
async def test_only_the_button_confirms(rig: ApiRig) -> None:
    contact, segment, path = await asked(rig)
    for _ in range(2):
        page = await opened(rig, "GET", path)
        assert page.status == 200
        assert await members(rig, segment) == []
    text = page.body.decode()
    assert "Acme &lt;news&gt;" in text and "Yes &amp; thanks" in text and "<script" not in text
    assert page.headers["referrer-policy"] == "no-referrer" and "noindex" in page.headers["x-robots-tag"]
    for _ in range(2):
        done = await opened(rig, "POST", path)
        assert done.status == 200 and "You get our newsletter." in done.body.decode() and "<button" not in done.body.decode()
        assert await members(rig, segment) == ["ada@example.net"]
    evidence = [each async for page_ in Evidence(rig.pool).all(rig.account_id) for each in page_]
    acts = [(each.action, each.source, each.text, each.details["ip"]) for each in evidence]
    shown = "Acme <news>\nDo you want our newsletter?\n[Yes & thanks]"
    assert acts == [("requested", "api", None, "192.0.2.1"), ("subscribed", "confirmation", shown, "192.0.2.1")]
    assert contact
    await rig.request("DELETE", f"/contacts/{contact}")
    exported = (await rig.request("GET", "/consents?email=ADA@example.net")).body.decode()
    assert exported.startswith("time,email,contact_id,action,kind,target_id,target_name,source,text,details\r\n")
    assert exported.count("Do you want our newsletter?") == 1 and "ada@" not in exported


@pytest_twisted.ensureDeferred
async def test_evidence_has_pages(rig: ApiRig) -> None:
    topic = await make(rig, "/topics", name="News", default_subscription="opt_out")
    for name in ("ada", "bob", "zoe"):
        await make(rig, "/contacts", email=f"{name}@example.net", unsubscribed=True)
    await rig.request("PATCH", "/contacts/ada@example.net/topics", [{"id": topic, "subscription": "opt_in"}])

    async def read(query: str) -> tuple[list[str], bool]:
        answer = (await rig.request("GET", f"/consents?{query}")).json
        found.update({row["id"]: row for row in answer["data"]})
        return [row["id"] for row in answer["data"]], answer["has_more"]

    found: dict[str, Any] = {}
    newest, more = await read("limit=3")
    assert more and [found[id]["email"] for id in newest] == ["ada@example.net", "zoe@example.net", "bob@example.net"]
    last, more = await read(f"after={newest[-1]}")
    assert (len(last), more) == (1, False)
    assert await read(f"limit=2&before={last[0]}") == (newest[1:], True)
    assert await read("email=ada@example.net&limit=1") == ([newest[0]], True)
    assert await read(f"email=ada@example.net&after={newest[0]}") == (last, False)
    row = found[newest[0]]
    assert (row["action"], row["kind"], row["target_id"], row["target_name"], row["source"], row["text"]) == (
        "subscribed", "topic", topic, "News", "api", None,
    )  # fmt: skip
    assert row["details"]["ip"] == "192.0.2.1"
    whole = [line.split(",")[1] for line in (await rig.request("GET", "/consents")).body.decode().splitlines()]
    assert whole == ["email", *(f"{name}@example.net" for name in ("ada", "bob", "zoe", "ada"))]
    for query in ("limit=0", "after=x", f"after={last[0]}&before={last[0]}"):
        assert (await rig.request("GET", f"/consents?{query}")).status == 422
    assert (await rig.request("GET", "/consents?limit=1", key=rig.foreign_key)).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_export_of_one_address_is_complete(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_store, "PAGE", 2)
    await make(rig, "/contacts", email="ada@example.net")
    await make(rig, "/contacts", email="bob@example.net", unsubscribed=True)
    for unsubscribed in (True, False) * 2 + (True,):
        await rig.request("PATCH", "/contacts/ada@example.net", {"unsubscribed": unsubscribed})
    lines = (await rig.request("GET", "/consents?email=ada@example.net")).body.decode().splitlines()
    assert [line.split(",")[3] for line in lines[1:]] == ["unsubscribed", "subscribed"] * 2 + ["unsubscribed"]


@pytest_twisted.ensureDeferred
async def test_evidence_is_found_by_the_address_as_people_write_it(rig: ApiRig) -> None:
    await make(rig, "/contacts", email="zoe+x@bücher.example", unsubscribed=True)
    for written in ("zoe%2Bx@b%C3%BCcher.example", "ZOE%2Bx@xn--bcher-kva.example"):
        assert "unsubscribed" in (await rig.request("GET", f"/consents?email={written}")).body.decode(), written
    wrong = await rig.request("GET", "/consents?email=zoe+x@b%C3%BCcher.example")  # a plus sign is a space there
    assert (wrong.status, wrong.json["message"].partition(".")[0]) == (422, "Invalid `email` parameter")


@pytest_twisted.ensureDeferred
async def test_other_links_do_nothing(rig: ApiRig) -> None:
    contact, segment, path = await asked(rig)
    forged = path[:-6] + ("AAAAAA" if not path.endswith("AAAAAA") else "BBBBBB")
    for wrong in (forged, "/confirm", "/confirm?token=", "/confirm?token=%00", path.replace("token=", "token=A")):
        for method in ("GET", "POST"):
            page = await opened(rig, method, wrong)
            assert page.status == 404 and b"not valid" in page.body
    await rig.pool.run("UPDATE confirmations SET expires_at = now() - interval '1 second'")
    assert (await opened(rig, "GET", path)).status == 404
    await opened(rig, "POST", path)
    assert await members(rig, segment) == []
    await rig.request("DELETE", f"/contacts/{contact}")
    assert (await opened(rig, "POST", path)).status == 404
