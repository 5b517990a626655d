"""Importing contacts on pages: the upload, choosing the columns, the result. Reading the rows: tests/audience/test_imports."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
import pytest_twisted
from twisted.internet.defer import TimeoutError, fail, succeed
from twisted.web.http_headers import Headers

from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.audience.imports import ImportWorker
from mailsvc.dashboard.audience import mapping
from mailsvc.http.gate import FORM, Gate, Head, Limits
from mailsvc.runtime.budget import Budgets
from mailsvc.store.audience.listing import Filter
from mailsvc.store.paging import ALL
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.audience.test_contacts import started
from tests.dashboard.fixtures import DashboardRig, session
from tests.store.audience.rig import WORDING

IMPORTS = "/dashboard/audience/imports"
TOPICS = (("News", None), ("Offers", WORDING))
CSV = (
    b"E-Mail;Given;company;Seats;Secret\n"
    b"ada@example.net;Ada;Analytical Ltd;3;x\n"
    b"nobody;Bob;None;4;x\n"
    b"carl@example.net;Carl;;many;x\n"
    b"dora@example.net;Dora;Acme;;x\n"
)


async def run(rig: DashboardRig) -> None:
    audience = rig.assembly.audience
    await ImportWorker(audience.imports, audience.contacts.keys, lambda work: succeed(work()), rig.clock).poll_all()


@pytest_twisted.ensureDeferred
async def test_a_file_is_uploaded_its_columns_are_chosen_and_the_result_is_shown(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    audience = rig.assembly.audience
    await audience.properties.add(account_id, "company", "string", None)
    segment = await audience.segments.add(account_id, "Friends")
    topic, asking = [await audience.topics.add(account_id, name, False, None, True, wording) for name, wording in TOPICS]
    at = (await ann.upload(IMPORTS, CSV)).location
    choices = await ann.get(at)
    assert '<option value="email" selected>' in choices.text and '<option value="p:company" selected>' in choices.text
    assert "Analytical Ltd, None<" in choices.text and "seats (number)" in choices.text
    await run(rig)
    assert await pool.rows("SELECT FROM contacts") == []  # nothing is imported before somebody starts it
    assert at.rpartition("/")[2] in (await ann.get(IMPORTS)).text

    form = {
        "column:0": "email", "column:1": "first_name", "column:2": "p:company", "column:3": "new:number", "segment": str(segment.id),
        "topic": str(topic.id), "on_conflict": "upsert",
    }  # fmt: skip
    wrong = await ann.post(f"{at}/start", form)
    assert wrong.status == 422 and "Confirm that these people agreed" in wrong.text and '"new:number" selected' in wrong.text
    form["consent"] = "on"
    for change, sentence in (
        ({"column:0": ""}, "Choose the column that has the email addresses."),
        ({"column:1": "email"}, "Choose “Email address” for one column only."),
        ({"column:3": "p:company"}, "Choose the property “company” for one column only."),
        ({"column:3": "p:unknown"}, "isn’t available any more"),
        ({"segment": str(uuid4())}, "The chosen segment isn’t available any more."),  # it was deleted
        ({"topic": str(asking.id)}, "The chosen topic isn’t available any more."),
    ):
        wrong = await ann.post(f"{at}/start", form | change)
        assert wrong.status == 422 and sentence in wrong.text, sentence
    assert (await ann.post(f"{at}/start", form)).location == at
    assert (await ann.post(f"{at}/start", form)).location == at  # sent twice
    assert "% of the file" in (await ann.get(at)).text
    await run(rig)
    result = await ann.get(at)
    assert "Completed" in result.text and "<dd>4</dd>" in result.text
    assert ">3</td>" in result.text and "A property must be a number." in result.text
    errors = await ann.get(f"{at}/errors.csv")
    assert errors.text.splitlines()[0] == "line,reason,value" and errors.text.count("\n") == 3 and "4,a property" in errors.text
    found, _ = await audience.lists.page(account_id, ALL, Filter(segment.id))
    keys = {str(each.number): each.key for each in (await audience.properties.list(account_id, ALL))[0]}
    values = {each.email: (each.first_name, {keys[number]: value for number, value in each.properties.items()}) for each in found}
    assert values == {
        "ada@example.net": ("Ada", {"company": "Analytical Ltd", "seats": 3}),
        "dora@example.net": ("Dora", {"company": "Acme"}),
    }
    assert {each.id for each in (await audience.lists.topics(account_id, found[0].id, ALL))[0] if each.subscribed} == {topic.id}
    log = dict(await rig.audit(account_id))
    assert log["contacts imported"] == f"{len(CSV)} bytes; confirmed: All these people agreed to get mail from us."
    assert log["contact property created"] == "seats"


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (b"", "Choose a file."),
        (b"\n\n", "The file is empty."),
        (b"PK\x03\x04\0\0", "isn’t a CSV file in UTF-8"),
        (b"ada@example.net,Ada\nbob@example.net,Bob\n", "an address instead of the names of the columns"),
        (b"email,name\rada@example.net,Ada\r", "The first line can’t be read."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_file_without_columns_is_refused(pool: Pool, file: bytes, sentence: str) -> None:
    _, _, ann = await started(pool)
    shown = await ann.upload(IMPORTS, file)
    assert shown.status == 422 and sentence in shown.text
    assert await pool.rows("SELECT FROM contact_imports") == []


@pytest_twisted.ensureDeferred
async def test_an_upload_needs_the_token_of_our_page_and_a_form(pool: Pool) -> None:
    _, _, ann = await started(pool)
    assert (await ann.upload(IMPORTS, CSV, token="0" * 64)).status == 403
    assert (await ann.upload(IMPORTS, CSV, headers={"Origin": "https://evil.example"})).status == 403
    assert (await ann.upload(IMPORTS, CSV, headers={"Content-Type": "text/csv"})).status == 415
    assert "Choose a file." in (await ann.post(IMPORTS)).text
    assert await pool.rows("SELECT FROM contact_imports") == []


@pytest_twisted.ensureDeferred
async def test_an_uploaded_file_is_counted_kept_from_others_and_discarded(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    await rig.person("eve@example.com")
    eve = await rig.inside("eve@example.com")
    await eve.get(IMPORTS)
    at = (await ann.upload(IMPORTS, CSV)).location
    for path in (at, f"{at}/errors.csv"):
        assert (await eve.get(path)).status == 404
    assert (await eve.post(f"{at}/discard")).status == (await eve.post(f"{at}/start")).status == 404
    assert (await ann.get(f"{IMPORTS}/{uuid4()}")).status == 404
    rig.assembly.audience.imports.most_open = 1
    full = await ann.upload(IMPORTS, CSV)
    assert full.status == 422 and "1 imports in progress" in full.text
    assert await rig.assembly.audience.imports.get(account_id, UUID(at.rpartition("/")[2])) is None  # the API does not show it
    assert (await ann.post(f"{at}/discard")).location == IMPORTS
    assert (await ann.post(f"{at}/discard")).status == 404
    assert await pool.rows("SELECT FROM contact_import_chunks") == []


@pytest_twisted.ensureDeferred
async def test_a_file_that_does_not_get_its_turn_in_time_is_refused(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, _, ann = await started(pool)
    with monkeypatch.context() as late:
        late.setattr(rig.assembly.audience.turns, "acquire", lambda: fail(TimeoutError()))
        refused = await ann.upload(IMPORTS, CSV)
    assert refused.status == 503 and "Other files are being stored at the moment." in refused.text
    assert (await ann.upload(IMPORTS, CSV)).location


@pytest_twisted.ensureDeferred
async def test_only_a_member_may_send_more_than_a_form(pool: Pool) -> None:
    """Decided before the body is read."""
    rig, account_id, ann = await started(pool)
    limits, budgets = Limits(), Budgets.of(1 << 40, 1 << 40, rig.clock)
    gate = Gate(None, RateLimit(rig.clock, 10), limits, budgets, lambda text: False, rig.assembly.uploader.account)  # type: ignore[arg-type]

    async def most(cookie: str, path: str = IMPORTS) -> int:
        headers = Headers({"host": ["localhost"], "cookie": [f"mailsvc={cookie}"], "content-type": ["multipart/form-data; boundary=x"]})
        head = Head(b"POST", path.encode(), b"HTTP/1.1", headers, lambda: "192.0.2.1", 1000, True, True)
        return (await gate.admit(head)).body_max

    secret = session(ann)
    assert await most(secret) == limits.upload + FORM
    assert await most(secret, "/dashboard/audience") == limits.form
    assert await most("") == await most("x" * 43) == limits.form
    await pool.run("UPDATE accounts SET dashboard_networks = '{203.0.113.0/24}' WHERE id = %s", (account_id,))
    assert await most(secret) == limits.form
    await pool.run("UPDATE accounts SET dashboard_networks = '{}' WHERE id = %s", (account_id,))
    assert await most(secret) == limits.upload + FORM
    await pool.run("DELETE FROM members")
    assert await most(secret) == limits.form


def test_columns_are_recognized_by_their_header_or_by_an_address() -> None:
    header = mapping.read(b"Mail,First Name,seats,unsubscribed\nada@example.net,Ada,1,no\n", {"seats": "number"})
    assert [each.guess for each in header.columns] == ["email", "first_name", "p:seats", "unsubscribed"]
    assert [each.guess for each in mapping.read(b"First Name,Mail\nAda,none\n", {}).columns] == ["", ""]
    header = mapping.read(b"\xef\xbb\xbfe-mail\tFirst Name\tseats\tunsubscribed\nx\tAda\t1\tno\n", {"seats": "number"})
    assert [each.guess for each in header.columns] == ["email", "first_name", "p:seats", "unsubscribed"]
    assert header.separator == "\t" and [each.samples for each in header.columns] == [["x"], ["Ada"], ["1"], ["no"]]


def test_new_properties_have_keys_of_their_own() -> None:
    header = mapping.read("Größe (cm),groesse,Email,ID,Größe-cm,,\xff\n".encode("latin-1"), {"groesse": "string"})
    keys = [each.key for each in header.columns]
    assert keys[1:4] == ["", "", ""] and len({key for key in keys if key}) == len([key for key in keys if key])
    assert all(key.replace("_", "a").isalnum() and key.isascii() for key in keys if key)
    assert [each.header for each in header.columns][5:] == ["Column 6", "\N{REPLACEMENT CHARACTER}"]


def test_a_long_header_is_cut() -> None:
    header = mapping.read(b",".join(b"c%d" % n for n in range(200)) + b"\n", {})
    assert len(header.columns) == mapping.MOST and header.left_out == 50
    assert mapping.planned(header, {0: "email"}, {}).plan.width == 200
