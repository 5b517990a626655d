"""The commands about accounts, API keys, members, webhooks and emails: what they print and refuse, and their exit status."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import pytest_twisted

from mailsvc.cli.account import KINDS
from mailsvc.clock import utc
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.events.webhooks import Webhooks
from mailsvc.store.mail.accept import Submission
from mailsvc.store.people.api_keys import Keys, digest
from mailsvc.store.people.sessions import Sessions
from mailsvc.store.people.users import Users
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.holds import hold_everything
from mailsvc.store.queue.processes import ProcessRegistration
from tests.cli.in_process import InProcess
from tests.store.fixtures import REGION, StoreRig, email


@pytest.fixture
def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess.of(pool, tmp_path, monkeypatch)


async def created(mailsvc: InProcess, *words: str) -> str:
    return (await mailsvc.prints(*words)).output.strip()


@pytest_twisted.ensureDeferred
async def test_accounts_are_listed_shown_and_renamed(mailsvc: InProcess) -> None:
    assert (await mailsvc("account", "list")).messages == "There are no accounts.\n"
    one = await created(mailsvc, "account", "create", "One", "--notify", "ops@example.com")
    other = await created(mailsvc, "account", "create", "Other")
    lines = (await mailsvc.prints("account", "list")).lines
    assert lines == [f"1    {one}  active     -         One", f"2    {other}  active     -         Other"]

    assert (await mailsvc.prints("account", "rename", "1", "  Example\t Ltd ")).output == "One is now called Example Ltd.\n"
    assert (await mailsvc.prints("account", "rename", "1", "Example Ltd", "--json")).json == {"id": one, "name": "Example Ltd"}
    wrong = "Invalid value for 'NAME': expected 1 to 100 printable characters"
    assert wrong in await mailsvc.refuses("account", "rename", "1", " ", status=2)
    for name in ("", " ", "x" * 101, "a\x1b[31mb"):
        assert wrong in await mailsvc.refuses("account", "create", name, status=2)
    for name in ("", "x" * 51, "a\0b"):
        refused = await mailsvc.refuses("key", "create", "--account", "1", "--name", name, status=2)
        assert "Invalid value for '--name': expected 1 to 50 printable characters" in refused
    assert "No account is called 'One'." in await mailsvc.refuses("account", "show", "One")

    await mailsvc.prints("account", "plan", "1", "free")
    shown = (await mailsvc.prints("account", "show", "Example Ltd")).lines
    assert shown[0] == "Example Ltd"
    assert "  status         active" in shown
    assert "  plan           free, 0 of 100 recipients this day, 0 of 3,000 recipients this month" in shown
    assert "  notifications  ops@example.com" in shown
    assert "  members        0, 0 of them admins" in shown
    assert "  new account    at most 10,000 recipients a day" in (await mailsvc.prints("account", "show", "Other")).lines
    found = (await mailsvc.prints("account", "show", one, "--json")).json
    assert (found["id"], found["number"], found["status"], found["plan"]) == (one, 1, "active", "free")
    assert found["usage"]["day"] == {"used": 0, "limit": 100}
    assert [each["name"] for each in (await mailsvc.prints("account", "list", "--json")).json] == ["Example Ltd", "Other"]


@pytest_twisted.ensureDeferred
async def test_an_account_is_suspended_and_resumed_but_not_while_it_is_closed(mailsvc: InProcess) -> None:
    account = await created(mailsvc, "account", "create", "One")
    assert (await mailsvc.prints("account", "suspend", "One")).output == "One is suspended.\n"
    assert (await mailsvc.prints("account", "suspend", "One")).output == "One was already suspended.\n"
    assert "suspended" in (await mailsvc.prints("account", "list")).output
    assert any("suspended since" in line for line in (await mailsvc.prints("account", "show", "One")).lines)
    resumed = (await mailsvc.prints("account", "resume", "One", "--json")).json
    assert resumed == {"id": account, "suspended": False, "changed": True}
    assert (await mailsvc.prints("account", "resume", "One")).output == "One was not suspended.\n"
    closed = (await mailsvc.prints("account", "close", "One", "--yes", "--days", "3", "--json")).json
    assert closed["id"] == account and closed["data_deleted_at"]
    assert "One is closed: its data will be deleted on" in await mailsvc.refuses("account", "resume", "One")
    assert (await mailsvc.prints("account", "list", "--json")).json[0]["status"] == "closed"
    assert (await mailsvc.prints("account", "reopen", "One", "--json")).json == {"id": account, "suspended": False}
    assert (await mailsvc.prints("account", "list", "--json")).json[0]["status"] == "active"
    # A suspension while it is closed stays when its admins reopen it.
    await mailsvc.prints("account", "close", "One", "--yes", "--days", "3")
    assert [(await mailsvc.prints("account", "suspend", "One", "--json")).json["changed"] for _ in range(2)] == [True, False]
    assert (await mailsvc.prints("account", "reopen", "One", "--json")).json["suspended"] is True


@pytest_twisted.ensureDeferred
async def test_an_ambiguous_name_is_answered_with_a_list(mailsvc: InProcess) -> None:
    ids = [await created(mailsvc, "account", "create", "Twice") for _ in range(2)]
    first, *listed = (await mailsvc.refuses("account", "show", "Twice")).splitlines()
    assert first == "mailsvc: 2 accounts are called 'Twice'. Use the number or the ID:"
    assert [line.split()[:3] for line in listed] == [["1", ids[0], "Twice"], ["2", ids[1], "Twice"]]
    for account in ids:
        await mailsvc("domain", "add", "a.example", "--account", account)
    first, *listed = (await mailsvc.refuses("domain", "show", "a.example")).splitlines()
    assert first == "mailsvc: 2 accounts have added a.example and none has verified it. Choose one with --account:"
    assert sorted(line.split()[1] for line in listed) == sorted(ids)
    for _ in range(2):
        await mailsvc.prints("key", "create", "--account", "1", "--name", "shop")
    first, *listed = (await mailsvc.refuses("key", "revoke", "shop", "--account", "1")).splitlines()
    assert first == "mailsvc: 2 API keys of the account Twice are called 'shop'. Use the ID:"
    assert len(listed) == 2


@pytest_twisted.ensureDeferred
async def test_only_a_key_with_sending_access_is_restricted_to_a_domain(mailsvc: InProcess) -> None:
    await created(mailsvc, "account", "create", "One")
    await mailsvc("domain", "add", "a.example", "--account", "1")
    command = ("key", "create", "--account", "1", "--domain", "a.example")
    assert "--domain requires --permission sending_access" in await mailsvc.refuses(*command, status=2)
    assert (await mailsvc.prints("key", "list", "--account", "1", "--json")).json == []
    await mailsvc.prints(*command, "--permission", "sending_access")


@pytest_twisted.ensureDeferred
async def test_keys_are_listed_and_revoked_by_id_first_characters_or_name(mailsvc: InProcess, pool: Pool) -> None:
    from twisted.internet import reactor

    account = await created(mailsvc, "account", "create", "One")
    one = (await mailsvc.prints("key", "create", "--account", "1", "--name", "one", "--json")).json
    tokens = [await created(mailsvc, "key", "create", "--account", "1", "--name", name, "--days", "9") for name in ("two", "three", "four")]
    listed = (await mailsvc.prints("key", "list", "--account", "1", "--json")).json
    assert [(each["name"], each["hint"]) for each in listed[::-1]] == [
        (name, token[:9]) for name, token in zip(("one", "two", "three", "four"), (one["token"], *tokens), strict=True)
    ]
    for which in (one["id"], tokens[0][:9], tokens[1]):
        assert "is revoked." in (await mailsvc.prints("key", "revoke", which, "--account", "One")).output
    revoked = (await mailsvc.prints("key", "revoke", "four", "--account", "One", "--json")).json
    assert (revoked["name"], revoked["revoked"]) == ("four", True)
    assert (await Keys(pool, reactor).list(UUID(account)))[0] == []
    message = await mailsvc.refuses("key", "revoke", tokens[0], "--account", "One")
    assert "has no API key" in message and tokens[0] not in message, "the whole key is not repeated"


@pytest_twisted.ensureDeferred
async def test_members_are_listed_changed_and_removed_except_the_last_admin(mailsvc: InProcess, pool: Pool) -> None:
    from twisted.internet import reactor

    account = UUID(await created(mailsvc, "account", "create", "One"))
    link = await created(mailsvc, "member", "add", "ann@example.com", "--account", "One")
    assert "/dashboard/sign-in/link?link=" in link
    for words in (("role", "ann@example.com", "developer"), ("remove", "ann@example.com"), ("add", "ann@example.com", "--role", "billing")):
        assert "An account needs at least one admin." in await mailsvc.refuses("member", *words, "--account", "One")
    for options, role in ((("--role", "developer"), "developer"), ((), "developer"), (("--role", "billing"), "billing")):
        added = (await mailsvc.prints("member", "add", "bob@example.com", "--account", "One", "--json", *options)).json
        assert added["role"] == role, "a new link without a role does not change it"
    assert (
        await mailsvc.prints("member", "role", "BOB@example.com", "admin", "--account", "1")
    ).output == "bob@example.com is admin of One.\n"
    users = Users(pool, reactor, mailsvc.encryption)
    [ann] = [each for each in await users.members(account) if each.email == "ann@example.com"]
    key_id, _ = await Keys(pool, reactor).create(account, "hers", "full_access", created_by=ann.user_id)
    await Sessions(pool, reactor).make_link("invite", "eve@example.com", timedelta(days=1), account, "developer", ann.user_id)
    lines = (await mailsvc.prints("member", "list", "--account", "One")).lines
    assert lines[0] == "admin      password only  never             ann@example.com"
    assert lines[2].startswith("developer  invited        until ") and lines[2].endswith("eve@example.com")
    listed = (await mailsvc.prints("member", "list", "--account", "One", "--json")).json
    assert [(each["email"], each["role"]) for each in listed["members"]] == [("ann@example.com", "admin"), ("bob@example.com", "admin")]

    demoted = await mailsvc.prints("member", "role", "ann@example.com", "developer", "--account", "One")
    assert str(key_id) in demoted.messages and "keep their full access" in demoted.messages
    removed = await mailsvc.prints("member", "remove", "ann@example.com", "--account", "One", "--revoke-keys", "--json")
    assert removed.json == {"email": "ann@example.com", "removed": True, "revoked_keys": [str(key_id)]}
    assert (await Keys(pool, reactor).list(account))[0] == []
    assert "ann@example.com is not a member of One." in await mailsvc.refuses("member", "remove", "ann@example.com", "--account", "One")

    key_id, _ = await Keys(pool, reactor).create(account, "his", "full_access", created_by=(await users.members(account))[0].user_id)
    await mailsvc.prints("member", "add", "cat@example.com", "--account", "One")
    removed = await mailsvc.prints("member", "remove", "bob@example.com", "--account", "One")
    assert removed.output == "bob@example.com is no longer a member of One.\n"
    assert str(key_id) in removed.messages and "keep working" in removed.messages


@pytest_twisted.ensureDeferred
async def test_a_sign_in_link_replaces_the_earlier_one(mailsvc: InProcess, pool: Pool) -> None:
    from twisted.internet import reactor

    await mailsvc.prints("account", "create", "One")
    first = await created(mailsvc, "member", "add", "ann@example.com", "--account", "One")
    second = (await mailsvc.prints("member", "link", "Ann@example.com", "--json")).json
    assert second["email"] == "ann@example.com"
    links = [await Sessions(pool, reactor).find_link(link.partition("link=")[2], "sign-in") for link in (first, second["link"])]
    assert links[0] is None and links[1] is not None
    assert "There is no user with the address x@example.com." in await mailsvc.refuses("member", "link", "x@example.com")


@pytest_twisted.ensureDeferred
async def test_domains_are_shown_listed_and_deleted(mailsvc: InProcess) -> None:
    account = await created(mailsvc, "account", "create", "One")
    await mailsvc.prints("domain", "add", "a.example", "--account", "One")
    shown = await mailsvc.prints("domain", "show", "A.example")
    assert shown.lines[0] == "a.example: not_started"
    assert "account     One" in shown.lines and "signs with  rsa and ed25519" in shown.lines
    assert any(line.startswith("send.a.example. MX 10 ") for line in shown.lines) and shown.output.endswith("Domain added.\n")
    found = (await mailsvc.prints("domain", "show", "a.example", "--json")).json
    assert (found["account_id"], found["status"], found["trusted"]) == (account, "not_started", False)
    assert {record["type"] for record in found["records"]} >= {"MX", "TXT"}
    [listed] = (await mailsvc.prints("domain", "list", "--json")).json
    assert (listed["account"], listed["name"]) == ("One", "a.example")
    await mailsvc.prints("domain", "trust", "a.example", "--account", "One")
    assert (await mailsvc.prints("domain", "show", "a.example")).lines[0] == "a.example: trusted"
    assert (await mailsvc.prints("domain", "list")).lines[0].startswith("a.example\ttrusted\t")
    found = (await mailsvc.prints("domain", "show", "a.example", "--json")).json
    assert (found["status"], found["trusted"]) == ("not_started", True)

    assert "Aborted!" in (await mailsvc("domain", "delete", "a.example")).messages
    deleted = (await mailsvc.prints("domain", "delete", "a.example", "--yes", "--json")).json
    assert deleted == {"id": found["id"], "name": "a.example", "deleted": True}
    assert "There is no domain a.example." in await mailsvc.refuses("domain", "delete", "a.example", "--yes")


@pytest_twisted.ensureDeferred
async def test_events_are_sent_to_a_webhook_again(mailsvc: InProcess, pool: Pool) -> None:
    from twisted.internet import reactor

    account = UUID(await created(mailsvc, "account", "create", "One"))
    stored = Webhooks(pool, reactor, mailsvc.encryption)
    ids = [str((await stored.add(account, url, ["email.sent"], b"secret", 9)).id) for url in ("https://a.example/", "https://b.example/")]  # type: ignore[union-attr]
    log = WebhookLog(pool)
    events = [await log.test(account, UUID(ids[0]), "email.sent", {}, utc(reactor)) for _ in range(3)]
    await pool.run("DELETE FROM webhook_outbox WHERE event_id = ANY (%s::uuid[])", (events[:2],))  # they have failed

    assert (await mailsvc.prints("webhook", "list", "--account", "One")).lines == [
        f"{ids[1]}  enabled   https://b.example/",
        f"{ids[0]}  enabled   https://a.example/",
    ]
    assert (await mailsvc.prints("webhook", "list", "--account", "One", "--json")).json[1]["endpoint"] == "https://a.example/"
    replay = ("webhook", "replay", ids[0], "--account", "One")
    assert (await mailsvc.prints(*replay, "--event", f"msg_{events[0].hex}")).output == "1 event is sent to https://a.example/ again.\n"
    failed = (await mailsvc.prints("webhook", "replay", "https://a.example/", "--account", "One", "--since", "2020-01-01", "--json")).json
    assert failed == {"id": ids[0], "endpoint": "https://a.example/", "replayed": 1}
    assert "3 events are sent" in (await mailsvc.prints(*replay, "--since", "2020-01-01T10:00", "--all")).output
    assert "0 events" in (await mailsvc.prints(*replay, "--since", "2020-01-01", "--until", "2020-01-02")).output
    assert "There is no event msg_" in await mailsvc.refuses(*replay, "--event", f"msg_{uuid4().hex}")
    assert "has no webhook" in await mailsvc.refuses("webhook", "replay", "x", "--account", "One", "--since", "2020-01-01")
    assert "Give exactly one of --event and --since." in await mailsvc.refuses(*replay, status=2)
    assert "--until and --all need --since." in await mailsvc.refuses(*replay, "--event", f"msg_{events[0].hex}", "--all", status=2)
    assert "begins with msg_" in await mailsvc.refuses(*replay, "--event", "x", status=2)
    await stored.change(account, UUID(ids[0]), status="disabled")
    assert "https://a.example/ is disabled" in await mailsvc.refuses(*replay, "--since", "2020-01-01", "--all")


@pytest_twisted.ensureDeferred
async def test_an_email_is_canceled_once(mailsvc: InProcess, pool: Pool) -> None:
    from twisted.internet import reactor

    account = UUID(await created(mailsvc, "account", "create", "One"))
    queued = email(account=account)
    await StoreRig(pool, reactor).acceptance.accept(Submission(account, [queued]))
    canceled = (await mailsvc.prints("email", "cancel", str(queued.email_id), "--json")).json
    assert canceled == {"id": str(queued.email_id), "canceled": True}
    assert await pool.rows("SELECT count(*) FROM queue") == [(0,)]
    assert "none of its recipients is waiting" in await mailsvc.refuses("email", "cancel", str(queued.email_id))
    assert "There is no email with the ID" in await mailsvc.refuses("email", "cancel", str(uuid4()))
    assert "is not the ID of an email" in await mailsvc.refuses("email", "cancel", "x", status=2)


@pytest_twisted.ensureDeferred
async def test_the_release_of_an_account_names_what_still_holds_its_mail(mailsvc: InProcess, pool: Pool) -> None:
    from twisted.internet import reactor

    account = UUID(await created(mailsvc, "account", "create", "One"))
    await StoreRig(pool, reactor).acceptance.accept(Submission(account, [email(account=account)]))
    await pool.run("INSERT INTO account_pauses (account_id, reason, until) VALUES (%s, 'Bounces.', 'infinity')", (account,))
    await pool.transact(lambda tx: hold_everything(tx, "Held.", REGION))
    done = await mailsvc.prints("account", "release", "One")
    assert done.output == "The account One is no longer on hold.\n"
    assert done.messages == "mailsvc: Mail is still on hold:\n  all mail: Held. End this with `mailsvc queue release`.\n"
    assert await mailsvc.printed("account", "release", "One") == "One was not on hold."


@pytest_twisted.ensureDeferred
async def test_what_is_not_stored_is_on(mailsvc: InProcess) -> None:
    await created(mailsvc, "account", "create", "One")
    lines = (await mailsvc.prints("account", "minimize", "One", "--on", "addresses")).lines
    assert lines[2:] == [
        "addresses on   IP addresses of recipients are shortened to their network.",
        "tracking  off  If on: Opens and clicks are not tracked.",
    ]


@pytest_twisted.ensureDeferred
async def test_an_account_is_deleted_when_no_process_accepts_its_mail_any_more(mailsvc: InProcess, pool: Pool) -> None:
    from twisted.internet import reactor

    account, keys, process = await created(mailsvc, "account", "create", "One"), Keys(pool, reactor), ProcessRegistration(pool, reactor)
    key = digest(await created(mailsvc, "key", "create", "--account", "One"))
    await process.start("us-east-1", ["http"])
    assert await keys.find(key) is not None  # the process remembers it for two seconds
    await mailsvc.prints("account", "close", account, "--days", "0", "--yes")
    assert await keys.find(key) is None
    await process.end()


@pytest_twisted.ensureDeferred
async def test_an_account_can_keep_data_for_fewer_days_only(mailsvc: InProcess) -> None:
    await mailsvc.prints("account", "create", "Example Ltd")
    output = (await mailsvc.prints("account", "retention", "Example Ltd", "--emails", "10", "--receipts", "3")).lines
    assert {"emails      10 days (default: 30)", "bodies      10 days (default: 30)", "receipts     3 days (default: 30)"} <= set(output)
    assert "requests    30 days" in output
    assert [line.split()[0] for line in output] == list(KINDS)  # each has an option
    message = await mailsvc.refuses("account", "retention", "Example Ltd", "--bodies", "31")
    assert message == "mailsvc: Data can only be kept for a shorter time than the settings say: retention.bodies is 30 days."
    assert "default" not in (await mailsvc.prints("account", "retention", "Example Ltd", "--reset")).output


@pytest_twisted.ensureDeferred
async def test_plans_are_set_by_name(mailsvc: InProcess) -> None:
    await mailsvc.prints("account", "create", "Example Ltd")
    assert (await mailsvc.prints("account", "plan", "Example Ltd")).output == "Example Ltd: no plan, no quota\n"
    output = (await mailsvc.prints("account", "plan", "Example Ltd", "free")).lines
    assert output == ["Example Ltd: free", "day    0 of 100 recipients", "month  0 of 3,000 recipients"]
    assert "There is no plan 'gold'. The plans are: free, 50k," in await mailsvc.refuses("account", "plan", "Example Ltd", "gold")
    assert (await mailsvc.prints("account", "plan", "Example Ltd")).lines == output
    assert (await mailsvc.prints("account", "plan", "Example Ltd", "--reset")).output == "Example Ltd: no plan, no quota\n"
    plans = (await mailsvc.prints("account", "plans")).lines
    assert len(plans) == 8 and plans[0] == "free         3,000 recipients per month, 100 per day; $0"
    assert plans[6] == "1500k    1,500,000 recipients per month; no price (published prices: $825 and $1,250)"


@pytest_twisted.ensureDeferred
async def test_a_missing_object_is_reported(mailsvc: InProcess) -> None:
    message = await mailsvc.refuses("key", "create", "--account", "Nobody")
    assert message == "mailsvc: No account is called 'Nobody'. `mailsvc account list` shows all accounts."
    account = await mailsvc.printed("account", "create", "Twice")
    await mailsvc.printed("account", "create", "Twice")
    assert "2 accounts are called 'Twice'" in await mailsvc.refuses("key", "create", "--account", "Twice")
    assert "has no domain example.com" in await mailsvc.refuses("domain", "trust", "example.com", "--account", account)
    assert "'no domain' is not a valid sending domain" in await mailsvc.refuses("domain", "add", "no domain", "--account", account)
    await mailsvc.printed("domain", "add", "example.com", "--account", account)
    assert "The account already has the domain example.com." in await mailsvc.refuses("domain", "add", "EXAMPLE.com", "--account", account)


@pytest_twisted.ensureDeferred
async def test_the_first_account_is_trusted_and_later_ones_are_limited(mailsvc: InProcess, pool: Pool) -> None:
    for words in (["Our own"], ["A customer"], ["A friend", "--trusted"]):
        await mailsvc.printed("account", "create", *words)
    limits = await pool.rows("SELECT trusted_at IS NOT NULL, ramp FROM accounts ORDER BY number")
    assert limits == [(True, None), (False, 10_000), (True, None)]


@pytest_twisted.ensureDeferred
async def test_trust_needs_the_setting(mailsvc: InProcess) -> None:
    mailsvc.config.write_text(mailsvc.config.read_text().replace("allow_trust = true", "allow_trust = false"))
    assert "domains.allow_trust is false" in await mailsvc.refuses("domain", "trust", "example.com", "--account", "1")
