"""The personal message of a broadcast: composed when it is sent or shown, always the same bytes.

What may vary is fixed before: the content when sending starts, the contact's values when the recipient enters the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import attrs

from mailsvc.broadcasts.links import PATH, Source, UnsubscribeLinks, headers
from mailsvc.mail import merge
from mailsvc.mail.address import Mailbox, parse_mailbox
from mailsvc.mail.compose import Draft, compose
from mailsvc.mail.encoded_template import Encoded, EncodedTemplate, with_preview
from mailsvc.mail.merge import Template, Values
from mailsvc.mail.tracking import template
from mailsvc.mail.tracking.message import Tracker, Tracking
from mailsvc.mail.tracking.template import TrackedTemplate
from mailsvc.mail.tracking.token import Key, Tracked, day_of
from mailsvc.runtime.offload import InThread
from mailsvc.semaphore import Semaphore
from mailsvc.store.broadcasts.personal import PersonalEmail, PersonalEmails, SentContent

_CONTENTS = 20  # broadcasts whose content is kept in memory
_BYTES = 16 << 20  # of them in memory, about
_PIECE = 300  # bytes that a placeholder takes in memory
OFF_REACTOR = 256 * 1024  # bytes; larger messages are composed in a thread
_NOBODY = Values({}, "")  # for texts without placeholders
Before = Callable[[int], Awaitable[None]]
LINKS = 100  # content with more tracked links is composed in a thread


@attrs.frozen
class Prepared:
    """A broadcast's content, parsed once."""

    content: SentContent
    sender: Mailbox
    reply_to: tuple[Mailbox, ...]
    html: Template | None
    text: Template | None
    preview: Template
    tracked: TrackedTemplate | None  # the HTML again, if something is tracked
    encoded_html: EncodedTemplate | None  # with the preview, if it can be encoded ahead
    encoded_text: EncodedTemplate | None
    placeholders: int  # of all parts

    @classmethod
    def of(cls, content: SentContent) -> Prepared:
        html = merge.parse(content.html) if content.html else None
        text = merge.parse(content.text) if content.text else None
        preview = merge.parse(content.preview_text)
        return cls(
            content,
            parse_mailbox(content.sender),
            tuple(parse_mailbox(each) for each in content.reply_to),
            html,
            text,
            preview,
            template.parse(content.html) if content.html and content.tracking is not None else None,
            None if html is None else _encoded_ahead(html, preview),
            None if text is None else EncodedTemplate.of(text),
            sum(1 for part in (html, text, preview) if part is not None for _ in part),
        )

    @property
    def links(self) -> int:
        """How many links can be tracked."""
        return 0 if self.tracked is None else self.tracked.links

    def __len__(self) -> int:
        """How many bytes it takes in memory, about: the content as it was stored, and cut into pieces."""
        templates = [each for each in (self.html, self.text) if each is not None]
        tracked = 0 if self.tracked is None else len(self.content) + 2 * _PIECE * len(self.tracked.pieces)
        encoded = sum(len(each) + _PIECE * len(each.parts) for each in (self.encoded_html, self.encoded_text) if each is not None)
        return 2 * len(self.content) + tracked + encoded + _PIECE * sum(len(each.pieces) for each in templates)


def _encoded_ahead(html: Template, preview: Template) -> EncodedTemplate | None:
    if any(preview):  # it differs from contact to contact
        return None
    whole = with_preview(html, preview.line(_NOBODY))
    return None if whole is None else EncodedTemplate.of(whole)


def message(prepared: Prepared, email: PersonalEmail, to: Mailbox, link: str, tracker: Tracker | None = None) -> bytes:
    """The message of one recipient, `to`, whose unsubscribe link is `link`."""
    values = Values(email.values, link, prepared.content.fallbacks)
    tracked = None if tracker is None else prepared.tracked
    return compose(
        Draft(
            sender=prepared.sender,
            to=(to,),
            subject=email.subject,
            date=email.created_at,
            message_id=email.message_id,
            reply_to=prepared.reply_to,
            html=_html(prepared, values)
            if tracked is None or tracker is None
            else _previewed(prepared, values, tracked.html(values, tracker)),
            text=_text(prepared, values),
            headers={"Precedence": "bulk", **headers(link), "X-Entity-Ref-ID": str(email.broadcast_id)},
        )
    )


def _html(prepared: Prepared, values: Values) -> str | Encoded | None:
    if prepared.html is None:
        return None
    encoded = None if prepared.encoded_html is None else prepared.encoded_html.encoded(lambda line: line.html(values))
    return encoded or _previewed(prepared, values, prepared.html.html(values))


def _previewed(prepared: Prepared, values: Values, html: str) -> str:
    return html and merge.with_preview(html, prepared.preview.line(values))


def _text(prepared: Prepared, values: Values) -> str | Encoded | None:
    if prepared.text is None:
        return None
    encoded = None if prepared.encoded_text is None else prepared.encoded_text.encoded(lambda line: line.text(values))
    return encoded or prepared.text.text(values)


@attrs.define(eq=False)
class Composer:
    """Implements store/mail/messages.Composer. `secrets`: by number, for tracked links."""

    stored: PersonalEmails
    links: UnsubscribeLinks
    in_thread: InThread
    secrets: Callable[[], Mapping[int, bytes]] = dict
    _prepared: OrderedDict[tuple[UUID, UUID], Prepared] = attrs.field(factory=OrderedDict, init=False, repr=False)
    _turn: Semaphore = attrs.field(factory=lambda: Semaphore(1), init=False, repr=False)

    async def message(self, account_id: UUID, email_id: UUID, before_large: Before | None = None) -> bytes | None:
        """The message of a broadcast's email; None if the email or its broadcast no longer exists.

        `before_large` gets about its size and is awaited before a large message is composed.
        """
        email = await self.stored.get(account_id, email_id)
        return None if email is None else await self.compose(email, before_large)

    async def compose(self, email: PersonalEmail, before_large: Before | None = None) -> bytes | None:
        """The same, if its values were read before."""
        account_id = email.account_id
        prepared = await self._content(account_id, email.broadcast_id)
        if prepared is None:
            return None
        values = Values(email.values, "", prepared.content.fallbacks)
        size = merge.room(len(prepared.content), prepared.placeholders, values)
        if before_large is not None and size > OFF_REACTOR:
            await before_large(size)
        to = parse_mailbox(email.to)
        source = Source(account_id, broadcast_id=email.broadcast_id, topic_id=email.topic_id)
        link = await self.links.make(prepared.content.base_url, source, to.address)
        tracker = self._tracker(prepared.content, email)
        if size <= OFF_REACTOR and (tracker is None or prepared.links <= LINKS):
            return message(prepared, email, to, link, tracker)
        return await self.in_thread(lambda: message(prepared, email, to, link, tracker))

    def _tracker(self, content: SentContent, email: PersonalEmail) -> Tracker | None:
        """A key that no longer exists makes no links: the emails that remain are not tracked."""
        fixed, secrets = content.tracking, self.secrets()
        if fixed is None or email.untracked or fixed.key not in secrets:
            return None
        tracking = Tracking(fixed.host, fixed.opens, fixed.clicks, Key(fixed.key, secrets[fixed.key]), content.base_url)
        day = day_of(email.created_at.timestamp())
        tracked = Tracked(email.account_id, email.email_id, day, broadcast_id=email.broadcast_id, contact_id=email.contact_id)
        return Tracker(tracking, tracked, (f"{content.base_url}{PATH}",))

    async def _content(self, account_id: UUID, broadcast_id: UUID) -> Prepared | None:
        key = account_id, broadcast_id
        prepared = self._prepared.get(key)
        if prepared is None:
            async with self._turn:  # a claim brings many emails of a broadcast, which all need its content
                prepared = self._prepared.get(key)
                return await self._read(key) if prepared is None else prepared
        self._prepared.move_to_end(key)
        return prepared

    async def _read(self, key: tuple[UUID, UUID]) -> Prepared | None:
        content = await self.stored.content(*key)
        if content is None:
            return None
        prepared = Prepared.of(content) if len(content) <= OFF_REACTOR else await self.in_thread(lambda: Prepared.of(content))
        self._prepared[key] = prepared
        while len(self._prepared) > _CONTENTS or sum(map(len, self._prepared.values())) > _BYTES:
            if len(self._prepared) == 1:
                break
            self._prepared.popitem(last=False)
        return prepared
