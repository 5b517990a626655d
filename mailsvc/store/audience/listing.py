"""Lists and searches of contacts, their segments and their topics.

Every list of contacts reads a range of an index, so a page costs the same at any depth. A search for a part of a name or address reads a
bounded number of contacts, and says how far it came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.audience import choices, members
from mailsvc.store.audience.contacts import COLUMNS, contact_of
from mailsvc.store.audience.keys import folded
from mailsvc.store.audience.values import Contact
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Pool

_LAST = "\U0010ffff"  # after every other character
CHUNK = 1000  # contacts that are read at once for a list of all

WHOLE = str(COLUMNS.of_table("c"))
LOOKED = "c.id, c.email, c.first_name, c.last_name"  # what a search reads of each contact: properties can be long
ALL = "SELECT {columns} FROM contacts c WHERE c.account_id = %s"
IN_SEGMENT = """
SELECT {columns} FROM contact_segments m JOIN contacts c ON c.account_id = m.account_id AND c.id = m.contact_id
WHERE m.account_id = %s AND m.segment_id = %s
"""
_MEMBER = " AND EXISTS (SELECT FROM contact_segments m WHERE m.account_id = c.account_id AND m.contact_id = c.id AND m.segment_id = %s)"
# Unsubscribed contacts are few: their own index, then the segment.
UNSUBSCRIBED_IN_SEGMENT = "SELECT {columns} FROM contacts c WHERE c.account_id = %s AND c.unsubscribed" + _MEMBER
BEGINNING = f"SELECT {COLUMNS} FROM contacts WHERE account_id = %s AND address >= %s AND address < %s ORDER BY address LIMIT %s"
# The addresses first: in the order of the page, Postgres could read many contacts before it finds the named ones.
NAMED = f"""
WITH named AS MATERIALIZED (SELECT * FROM contacts WHERE account_id = %s AND address = ANY (%s::text[]))
SELECT {WHOLE} FROM named c WHERE true
"""
SEARCH = f"""
WITH looked AS MATERIALIZED ({{source}} ORDER BY {{id}} DESC LIMIT {{scanned}}),
hits AS (
    SELECT id FROM looked WHERE strpos(lower(email), %(text)s) > 0 OR strpos(lower(concat_ws(' ', first_name, last_name)), %(text)s) > 0
    ORDER BY id DESC LIMIT %(limit)s
), edge AS (SELECT count(*) AS n, (array_agg(id ORDER BY id))[1] AS last FROM looked)
SELECT edge.n, edge.last, {WHOLE} FROM edge LEFT JOIN hits ON true
LEFT JOIN contacts c ON c.account_id = %(account_id)s AND c.id = hits.id ORDER BY hits.id DESC
"""


SIZES = """
SELECT s, (SELECT count(*) FROM (SELECT FROM contact_segments m WHERE m.account_id = %s AND m.segment_id = s LIMIT %s) x)
FROM unnest(%s::uuid[]) AS s
"""


@attrs.frozen
class Filter:
    """None and "" match every contact. `text`: a part of the address or the name, or several whole addresses."""

    segment_id: UUID | None = None
    unsubscribed: bool | None = None
    text: str = ""


@attrs.frozen
class Found:
    """`after`: where the next page begins, or None. A page can have fewer contacts than asked for and still have a next one."""

    contacts: Sequence[Contact]
    after: UUID | None


@attrs.frozen
class Membership:
    id: UUID
    name: str
    added_at: datetime


@attrs.frozen
class TopicOfContact:
    """`subscribed`: the contact's choice, otherwise the topic's default."""

    id: UUID
    name: str
    description: str | None
    subscribed: bool
    public: bool
    created_at: datetime


@attrs.define(eq=False)
class ContactLists:
    """`searched`: contacts that a search reads for one page."""

    pool: Pool
    searched: int = 5000

    async def page(self, account_id: UUID, page: Page, filter: Filter = Filter()) -> tuple[list[Contact], bool]:
        """Newest first, and whether there are more. `filter.text` is for `search`."""
        found, more = page.cut(await self.pool.rows(*_page(account_id, filter, page)))
        return [contact_of(row) for row in found], more

    async def all(self, account_id: UUID, filter: Filter = Filter()) -> AsyncIterator[list[Contact]]:
        """All of them in pages, newest first."""
        after: UUID | None = None
        more = True
        while more:
            found, more = await self.page(account_id, Page(CHUNK, after), filter)
            if found:
                after = found[-1].id
                yield found

    async def search(self, account_id: UUID, filter: Filter, limit: int, after: UUID | None = None) -> Found:
        text = folded(filter.text.strip())
        named = [each for each in text.replace(",", " ").replace(";", " ").split() if "@" in each[1:-1]]
        if named and len(named) == len(text.replace(",", " ").replace(";", " ").split()):
            page = Page(limit, after)
            rows, more = page.cut(await self.pool.rows(*_named(account_id, named[:1000], filter, page)))
            if rows or len(named) > 1:
                contacts = [contact_of(row) for row in rows]
                return Found(contacts, contacts[-1].id if more else None)
        if not text:
            found, more = await self.page(account_id, Page(limit, after), filter)
            return Found(found, found[-1].id if more else None)
        sql, params, column = _source(account_id, filter, LOOKED)
        source = sql.replace("%s", "%({})s").format(*range(len(params)))
        if after is not None:
            source += f" AND {column} < %(after)s AND c.id < %(after)s"  # both, as in _page
        values = {str(number): value for number, value in enumerate(params)} | {"account_id": account_id, "after": after}
        values |= {"text": text, "limit": limit + 1}
        rows = await self.pool.rows(SEARCH.format(source=source, id=column, scanned=self.searched), values)
        scanned, last = rows[0][:2]
        contacts = [contact_of(row[2:]) for row in rows if row[2] is not None]
        if len(contacts) > limit:
            return Found(contacts[:limit], contacts[limit - 1].id)
        return Found(contacts, last if scanned == self.searched else None)

    async def beginning(self, account_id: UUID, text: str, limit: int) -> list[Contact]:
        """Contacts whose address begins with this text, wherever they are among all contacts."""
        start = folded(text.strip())
        rows = await self.pool.rows(BEGINNING, (account_id, start, start + _LAST, limit))
        return [contact_of(row) for row in rows]

    async def sizes(self, account_id: UUID, segment_ids: Sequence[UUID], most: int) -> dict[UUID, int]:
        """How many contacts are in segments, counted up to `most` each: a million takes too long for a page."""
        return dict(await self.pool.rows(SIZES, (account_id, most, list(segment_ids))))

    async def segments(self, account_id: UUID, contact_id: UUID, page: Page) -> tuple[list[Membership], bool]:
        end, params = page.where("s.id")
        found, more = page.cut(await self.pool.rows(members.LIST + end, (account_id, contact_id, *params)))
        return [Membership(*row) for row in found], more

    async def topics(self, account_id: UUID, contact_id: UUID, page: Page) -> tuple[list[TopicOfContact], bool]:
        """Every topic of the account, with what holds for the contact."""
        end, params = page.where("t.id")
        found, more = page.cut(await self.pool.rows(choices.EFFECTIVE + end, (contact_id, account_id, *params)))
        return [TopicOfContact(*row) for row in found], more


def _page(account_id: UUID, filter: Filter, page: Page) -> tuple[str, tuple[object, ...]]:
    """The edge is a condition for both tables, because Postgres does not conclude one from the other and would read contacts before it."""
    sql, params, column = _source(account_id, filter, WHOLE)
    edge = page.before or page.after
    if edge is not None and column != "c.id":
        sql, params = sql + f" AND c.id {'<' if page.before is None else '>'} %s", (*params, edge)
    end, more_params = page.where(column)
    return sql + end, (*params, *more_params)


def _source(account_id: UUID, filter: Filter, columns: str) -> tuple[str, tuple[object, ...], str]:
    """A statement that ends in its WHERE clause, its parameters, and the column that it is ordered by."""
    if filter.segment_id is None:
        sql, params, column = ALL, (account_id,), "c.id"
    elif filter.unsubscribed:
        return UNSUBSCRIBED_IN_SEGMENT.format(columns=columns), (account_id, filter.segment_id), "c.id"
    else:
        sql, params, column = IN_SEGMENT, (account_id, filter.segment_id), "m.contact_id"  # type: ignore[assignment]
    return sql.format(columns=columns) + _state(filter), params, column


def _named(account_id: UUID, named: Sequence[str], filter: Filter, page: Page) -> tuple[str, tuple[object, ...]]:
    """The contacts with these addresses that match the filter."""
    member, segment = ("", ()) if filter.segment_id is None else (_MEMBER, (filter.segment_id,))
    end, params = page.where("c.id")
    return NAMED + member + _state(filter) + end, (account_id, list(named), *segment, *params)


def _state(filter: Filter) -> str:
    return {None: "", True: " AND c.unsubscribed", False: " AND NOT c.unsubscribed"}[filter.unsubscribed]
