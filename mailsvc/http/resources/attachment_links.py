"""Attachments with a `path`: fetched before the email is composed, through `net/fetch`, within the size limit of an email."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.http.problem import Problem, invalid
from mailsvc.incoming import Content, Incoming, attachments_of
from mailsvc.mail.compose import Attachment
from mailsvc.net.fetch import FetchError, HttpClient, Reply
from mailsvc.semaphore import Semaphore

LINKS = 50  # in one request
AT_ONCE = 4  # downloads of one request at the same time
SECONDS = 30.0  # for each download
TOGETHER = 60.0  # for all downloads of a request: its client waits for them

_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}")
_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\]")


@attrs.frozen
class Link(Attachment):
    """An attachment that is not fetched yet. `place` names it in errors."""

    url: str = ""
    place: str = ""


@attrs.frozen
class Links:
    """`most`: bytes that one request can fetch."""

    fetcher: HttpClient
    most: int
    clock: Any

    async def follow(self, emails: Sequence[Incoming], reserve: Callable[[int], bool]) -> dict[int, Incoming | Problem]:
        """The emails that have links, by index: with the fetched files, or the problem of the first that could not be fetched.

        `reserve` takes memory for each part as it arrives.
        """
        linked = {n: each for n, email in enumerate(emails) if (each := _links(email))}
        links = [link for each in linked.values() for link in each]
        if len(links) > LINKS:
            raise invalid(f"A request can have at most {LINKS} attachments with a `path`.")
        fetching = _Fetching(self.fetcher, self.most, reserve, self.clock, self.clock.seconds() + TOGETHER)
        begun: list[Deferred[Attachment | Problem]] = [Deferred.fromCoroutine(fetching.one(link)) for link in links]
        found = await gatherResults(begun)
        fetched = {id(link): got for link, got in zip(links, found, strict=True)}
        return {n: _filled(emails[n], fetched) for n in linked}


@attrs.define(eq=False)
class _Fetching:
    """The downloads of one request."""

    fetcher: HttpClient
    left: int
    reserve: Callable[[int], bool]
    clock: Any
    until: float
    slots: Semaphore = attrs.field(factory=lambda: Semaphore(AT_ONCE))

    async def one(self, link: Link) -> Attachment | Problem:
        async with self.slots:
            seconds = min(SECONDS, self.until - self.clock.seconds())
            if seconds <= 0:
                return _wrong(link, f"All files of a request have to arrive within {TOGETHER:.0f} seconds.")
            try:
                reply = await self.fetcher.fetch("GET", link.url, seconds=seconds, keep=self.left, reserve=self._room)
            except FetchError as error:
                return _wrong(link, str(error))
        if 300 <= reply.status < 400:
            return _wrong(link, f"The response was {reply.status}, and redirects are not followed. Give the URL that it leads to.")
        if reply.status != 200:
            return _wrong(link, f"The response was {reply.status}.")
        if not reply.whole:
            return _wrong(link, "It is too large.")
        if reply.coded:
            return _wrong(link, "It is compressed, although the request did not accept that.")
        return Attachment(reply.body, link.filename or _name(link.url), link.content_type or _type(reply), link.content_id)

    def _room(self, size: int) -> bool:
        if size > self.left or not self.reserve(size):
            return False
        self.left -= size
        return True


def _links(email: Incoming) -> list[Link]:
    return [each for each in attachments_of(email) if isinstance(each, Link)]


def _filled(email: Incoming, fetched: Mapping[int, Attachment | Problem]) -> Incoming | Problem:
    assert isinstance(email.content, Content)
    attachments = []
    for each in email.content.attachments:
        got = fetched.get(id(each), each)
        if isinstance(got, Problem):
            return got
        attachments.append(got)
    return attrs.evolve(email, content=attrs.evolve(email.content, attachments=tuple(attachments)))


def _wrong(link: Link, why: str) -> Problem:
    return Problem(422, "invalid_attachment", f"The `{link.place}.path` could not be fetched. {why}")


def _name(url: str) -> str | None:
    """The last part of the URL's path, if it can be a file name."""
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return name if name and not _UNFIT.search(name) else None


def _type(reply: Reply) -> str | None:
    found = _TYPE.match((reply.header("content-type") or "").strip())
    return found[0].lower() if found else None
