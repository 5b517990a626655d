"""Imports: the result of each row, that nobody is subscribed again, and that a kill repeats and misses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.audience import import_plan, imports
from mailsvc.audience.import_plan import ColumnMap
from mailsvc.audience.imports import File, ImportWorker
from mailsvc.monitoring import metrics
from mailsvc.monitoring.metrics import Exposition
from mailsvc.store.audience.import_values import Import, Lost, Orders
from mailsvc.store.audience.imports import CHUNK, Imports
from mailsvc.store.audience.values import Choice
from mailsvc.store.paging import ALL
from mailsvc.store.postgres.errors import Contention
from tests.store.audience.rig import PAGE, Audience


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


@attrs.define(eq=False)
class Importing:
    """An audience, and files for it."""

    audience: Audience
    worker: ImportWorker

    @classmethod
    def of(cls, audience: Audience, most_errors: int = 100) -> Importing:
        stored = Imports(audience.pool, audience.clock, most_errors)
        return cls(audience, ImportWorker(stored, audience.keys, at_once, audience.clock))

    async def add(
        self, data: str | bytes, *, update: bool = True, segments: tuple[UUID, ...] = (), topics: tuple[Choice, ...] = (), **given: Any
    ) -> Import:
        data = data.encode() if isinstance(data, str) else data
        known = {each.key: each for each in (await self.audience.properties.list(self.audience.account, ALL))[0]}
        columns = import_plan.columns(data, ColumnMap(**given), {key: each.type for key, each in known.items()})
        properties = {str(known[key].number): (at, kind) for key, (at, kind) in columns.properties.items()}
        plan = attrs.evolve(columns.plan, properties=properties)
        orders = Orders(plan.stored(), update, segments, topics, plan.width)
        return await self.worker.imports.add(self.audience.account, orders, len(data), columns.start, pieces(data))

    async def run(self, data: str | bytes, **options: Any) -> Import:
        added = await self.add(data, **options)
        await self.worker.poll_all()
        return await self.get(added.id)

    async def get(self, id_: UUID) -> Import:
        found = await self.worker.imports.get(self.audience.account, id_)
        assert found is not None
        return found

    async def errors(self, id_: UUID) -> list[tuple[int, str]]:
        return [(each.line, each.reason) async for page in self.worker.imports.errors(self.audience.account, id_) for each in page]


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), CHUNK):
        yield data[at : at + CHUNK]


def counted(found: Import) -> tuple[int, ...]:
    """total, created, updated, skipped, failed"""
    assert found.counts.total == sum(attrs.astuple(found.counts)[1:])
    return attrs.astuple(found.counts)


@pytest_twisted.async_fixture
async def importing(pool: Any) -> Importing:
    return Importing.of(await Audience.of(pool))


@pytest_twisted.ensureDeferred
async def test_rows_become_contacts_with_segments_topics_and_properties(importing: Importing) -> None:
    audience = importing.audience
    segment = await audience.segments.add(audience.account, "all")
    topic = await audience.topics.add(audience.account, "News", False)
    await audience.properties.add(audience.account, "plan", "string", None)
    seats = await audience.properties.add(audience.account, "seats", "number", None)
    data = 'E-Mail;First Name;last name;Unsubscribed;seats\nAda@Example.net;Ada;"Love\nlace";;12\nbob@example.net;;;YES;\n\n'
    done = await importing.run(data, segments=(segment.id,), topics=(Choice(topic.id, True),))
    assert (done.status, counted(done)) == ("completed", (2, 2, 0, 0, 0))
    ada, bob = await audience.find("ada@example.net"), await audience.find("bob@example.net")
    assert (ada.email, ada.first_name, ada.last_name, ada.unsubscribed) == ("Ada@example.net", "Ada", "Love lace", False)
    assert ada.properties == {str(seats.number): 12}
    assert bob.unsubscribed
    assert await audience.members(segment.id) == {ada.id, bob.id}
    assert await audience.chosen(ada) == {topic.id: True}
    assert [kind for kind, _ in await audience.events() if kind.startswith("contact")] == []
    assert ada.hash == await audience.hash()
    assert await audience.pool.rows("SELECT FROM contact_import_chunks") == []
    exposition = Exposition()
    metrics.imports(importing.worker.imports)(exposition)
    values = {(sample.name, *sample.labels.values()): sample.value for family in exposition.collect() for sample in family.samples}
    assert values["mailsvc_import_rows_total", "created"] == 2 and values["mailsvc_imports_total", "completed"] == 1


@pytest_twisted.ensureDeferred
async def test_wrong_rows_are_listed_with_line_and_reason(importing: Importing) -> None:
    await importing.audience.properties.add(importing.audience.account, "seats", "number", None)
    rows = [
        b"email,first_name,seats",
        b"nobody",
        b'"a\nb@example.net",x',
        b"good@example.net,Good,1",
        b"",
        b",x",
        b"a@example.net,\xff",
        b"b@example.net,,many",
        b"c@example.net,Doe, John,1",
        b"good@example.net,Good,1,,",
    ]
    done = await importing.run(b"\n".join([*rows, b'"open@example.net']))
    assert (done.status, counted(done)) == ("completed", (9, 1, 1, 0, 7))
    assert [line for line, _ in await importing.errors(done.id)] == [2, 3, 7, 8, 9, 10, 12]
    reasons = [reason for _, reason in await importing.errors(done.id)]
    assert reasons[2:] == [
        "the email address is missing", "the row is not UTF-8; save the file as “CSV UTF-8” and import it again",
        "a property must be a number",
        "the row has more fields than the header; see whether one has to be in quotation marks",
        "the row has a quotation mark that is not closed, or is too long",
    ]  # fmt: skip


@pytest_twisted.ensureDeferred
async def test_a_line_that_names_the_separator_counts_as_a_line(importing: Importing) -> None:
    done = await importing.run("sep=;\r\nemail;first_name\r\nada@example.net;Ada, Countess\r\nnobody;x\r\n")
    assert (done.status, counted(done)) == ("completed", (2, 1, 0, 0, 1))
    assert (await importing.audience.find("ada@example.net")).first_name == "Ada, Countess"
    assert [line for line, _ in await importing.errors(done.id)] == [4]


@pytest_twisted.ensureDeferred
async def test_existing_contacts_are_updated_or_skipped(importing: Importing) -> None:
    audience = importing.audience
    segment = await audience.segments.add(audience.account, "all")
    ada = await audience.add(first_name="Ada", last_name="Lovelace")
    data = "email,first_name,last_name\nADA@example.net,Augusta,\nnew@example.net,N,\nnew@example.net,M,\n"
    skipped = await importing.run(data, update=False, segments=(segment.id,))
    assert counted(skipped) == (3, 1, 0, 2, 0)
    assert (await audience.find()).first_name == "Ada"
    assert (await audience.find("new@example.net")).first_name == "N"
    assert await audience.members(segment.id) == {(await audience.find("new@example.net")).id}
    updated = await importing.run(data, segments=(segment.id,))
    assert counted(updated) == (3, 0, 3, 0, 0)
    found = await audience.find()
    assert (found.first_name, found.last_name) == ("Augusta", "Lovelace")
    assert (await audience.find("new@example.net")).first_name == "M"
    assert ada.id in await audience.members(segment.id)


@pytest_twisted.ensureDeferred
async def test_import_never_subscribes_anybody_again(importing: Importing) -> None:
    audience = importing.audience
    topic = await audience.topics.add(audience.account, "News", True)
    stays = await audience.add("stays@example.net", unsubscribed=True)
    await audience.choose(stays.id, topic.id, False)
    gone = await audience.add("gone@example.net")
    await audience.preferences.unsubscribe(audience.account, gone.hash, None, PAGE)
    await audience.preferences.unsubscribe(audience.account, gone.hash, topic.id, PAGE)
    await audience.contacts.delete(audience.account, gone.id)
    data = "email,unsubscribed\nstays@example.net,false\nGONE@example.net,false\nother@example.net,\n"
    await importing.run(data, topics=(Choice(topic.id, True),))
    for email in ("stays@example.net", "gone@example.net"):
        found = await audience.find(email)
        assert found.unsubscribed, email
        assert await audience.chosen(found) == {topic.id: False}, email
    other = await audience.find("other@example.net")
    assert (other.unsubscribed, await audience.chosen(other)) == (False, {topic.id: True})
    await importing.run("email\nother@example.net\n", topics=(Choice(topic.id, False),))
    assert await audience.chosen(other) == {topic.id: False}


@pytest_twisted.ensureDeferred
async def test_import_never_withdraws_an_objection_to_tracking(importing: Importing) -> None:
    audience = importing.audience
    for email in "gone@example.net", "stays@example.net":
        await audience.add(email, untracked=True)
    await audience.contacts.delete(audience.account, "gone@example.net")
    await importing.run("email\ngone@example.net\nstays@example.net\nother@example.net\n")
    objected = {email: (await audience.find(f"{email}@example.net")).untracked for email in ("gone", "stays", "other")}
    assert objected == {"gone": True, "stays": True, "other": False}
    await audience.contacts.update(audience.account, "gone@example.net", {"untracked": False}, PAGE)
    await audience.contacts.delete(audience.account, "gone@example.net")
    await importing.run("email\ngone@example.net\n")
    assert not (await audience.find("gone@example.net")).untracked


@pytest_twisted.ensureDeferred
async def test_process_that_dies_repeats_and_misses_nothing(importing: Importing, monkeypatch: Any) -> None:
    """At every batch another process takes over; a batch of the former one is refused."""
    monkeypatch.setattr(imports, "BATCH", 7)
    audience, count = importing.audience, 50
    data = "email,first_name\n" + "".join(f"{n}@example.net,{'x' * (n if n % 9 else 300)}\n" for n in range(count))
    added = await importing.add(data)
    one, workers = added, 0
    while True:
        audience.clock.advance(21)
        other = Importing.of(audience).worker
        taken = await other.imports.take()
        if taken is None:
            break
        assert taken.position == one.position and taken.line == one.line
        file = File(other.imports, taken, await audience.keys.of(audience.account), at_once, other.limits)
        batch = await file.next()
        if batch is None:
            await other.imports.end(taken)
            break
        one = await other.imports.commit(taken, batch)
        assert counted(await importing.get(added.id)) == attrs.astuple(one.counts)
        try:
            await other.imports.commit(taken, batch)
        except Lost:
            workers += 1
    assert workers == 8
    done = await importing.get(added.id)
    assert (done.status, counted(done)) == ("completed", (count, 44, 0, 0, 6))
    assert len(await importing.errors(added.id)) == 6
    assert (await audience.pool.rows("SELECT count(*) FROM contacts"))[0][0] == 44


@pytest_twisted.ensureDeferred
async def test_imports_take_turns(importing: Importing, monkeypatch: Any) -> None:
    monkeypatch.setattr(imports, "BATCH", 1)
    monkeypatch.setattr(imports, "TURN", 0.0)
    first, second = [await importing.add("email\na@example.net\nb@example.net\nc@example.net\n") for _ in range(2)]
    for _ in range(2):
        await importing.worker.poll()
        importing.audience.clock.advance(1)
    assert [(await importing.get(one.id)).counts.total for one in (first, second)] == [1, 1]
    importing.worker.stopping = True
    assert not await importing.worker.poll()


@pytest_twisted.ensureDeferred
async def test_import_ends_although_statistics_cannot_be_updated(importing: Importing, monkeypatch: Any) -> None:
    async def beside_a_vacuum(self: Imports) -> None:
        raise Contention("55P03", "canceling statement due to lock timeout")

    monkeypatch.setattr(imports, "ANALYZE", 1)
    monkeypatch.setattr(Imports, "analyze", beside_a_vacuum)
    assert counted(await importing.run("email\na@example.net\n")) == (1, 1, 0, 0, 0)


@pytest_twisted.ensureDeferred
async def test_file_over_several_chunks(importing: Importing) -> None:
    """Rows and characters are cut by the chunks."""
    count = 30_000
    data = "email,first_name\n" + "".join(f"{n}@example.net,{'é' * (n % 40)}\n" for n in range(count))
    assert len(data.encode()) > CHUNK
    done = await importing.run(data)
    assert counted(done) == (count, count, 0, 0, 0)
    assert (await importing.audience.find("29999@example.net")).first_name == "é" * 39


@pytest_twisted.ensureDeferred
async def test_errors_are_kept_up_to_a_number(importing: Importing) -> None:
    few = Importing.of(importing.audience, most_errors=3)
    done = await few.run("email\n" + "nobody\n" * 10)
    assert counted(done) == (10, 0, 0, 0, 10)
    assert len(await few.errors(done.id)) == 3


@pytest_twisted.ensureDeferred
async def test_endless_row_fails_the_import(importing: Importing) -> None:
    done = await importing.run("email\na@example.net\n" + "x" * (4 * CHUNK))
    assert (done.status, done.reason, done.counts.created) == ("failed", "The file has a row that does not end.", 1)


@pytest.mark.parametrize("why", ["deleted", "completed elsewhere"])
@pytest_twisted.ensureDeferred
async def test_import_whose_file_is_gone_ends(importing: Importing, monkeypatch: Any, why: str) -> None:
    """Its account is being deleted, or another process took over and was faster."""
    audience, asked, read = importing.audience, [0], Imports.chunk

    async def chunk(stored: Imports, one: Import, number: int) -> bytes:
        asked[0] += 1
        assert asked[0] < 10, "It asks for the file forever."
        if asked[0] == 1 and why == "deleted":
            await audience.pool.run("DELETE FROM contact_import_chunks")
        elif asked[0] == 1:
            audience.clock.advance(21)
            other = Importing.of(audience).worker.imports
            taken = await other.take()
            assert taken is not None
            await other.end(taken)
        return await read(stored, one, number)

    monkeypatch.setattr(Imports, "chunk", chunk)
    added = await importing.add("email\na@example.net\n")
    await importing.worker.poll_all()
    found = await importing.get(added.id)
    ended = ("failed", "The file is no longer stored.") if why == "deleted" else ("completed", None)
    assert (found.status, found.reason, found.counts.total) == (*ended, 0)


@pytest_twisted.ensureDeferred
async def test_segment_and_property_deleted_meanwhile_are_left_out(importing: Importing) -> None:
    audience = importing.audience
    segment = await audience.segments.add(audience.account, "all")
    plan = await audience.properties.add(audience.account, "plan", "string", None)
    added = await importing.add("email,plan\na@example.net,free\n", segments=(segment.id,))
    await audience.segments.remove(audience.account, segment.id)
    await audience.properties.remove(audience.account, plan.id)
    await importing.worker.poll_all()
    assert counted(await importing.get(added.id)) == (1, 1, 0, 0, 0)
    assert await audience.members(segment.id) == set()
    assert (await audience.find("a@example.net")).properties == {}
