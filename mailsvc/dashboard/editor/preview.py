"""What one contact would get of a draft, and the test email. The unsubscribe link in both is a sample that unsubscribes nobody."""

from __future__ import annotations

from uuid import UUID

import attrs

from mailsvc.broadcasts.fanout import own_values
from mailsvc.broadcasts.links import PATH
from mailsvc.dashboard.emails.sending import SUSPENDED, NotSent, sent
from mailsvc.dashboard.emails.trial import SOURCE
from mailsvc.incoming import Content as EmailContent
from mailsvc.incoming import Incoming
from mailsvc.intake import Intake
from mailsvc.mail import merge
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.merge import Values
from mailsvc.runtime.offload import InThread
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.values import Contact
from mailsvc.store.broadcasts.sending import Member, Sending
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.audit import Line

_LINKS = '<base target="_blank">'
_DARK = '<meta name="color-scheme" content="dark"><style>:root{color-scheme:dark;background:#121212;color:#e8e8e8}</style>'
IN_THREAD = 64 * 1024  # longer content is merged in a thread


@attrs.frozen
class Merged:
    subject: str
    preview_text: str
    html: str | None = attrs.field(repr=False)
    text: str | None = attrs.field(repr=False)


def framed(html: str, *, dark: bool) -> str:
    """The HTML for the preview frame: links open in a new tab, and `dark` asks for its dark variant."""
    place = html.lower().find("<head", 0, 2000)
    place = html.find(">", place) + 1 if place >= 0 else 0
    return html[:place] + _LINKS + (_DARK if dark else "") + html[place:]


@attrs.define(eq=False)
class Previews:
    contacts: Contacts
    sending: Sending
    accounts: Accounts
    intake: Intake
    in_thread: InThread
    base_url: str

    async def contact(self, account_id: UUID, text: str) -> Contact | None:
        """A contact by its address or ID."""
        try:
            return await self.contacts.get(account_id, parse_mailbox(text).address if "@" in text else UUID(text))
        except (AddressError, ValueError):
            return None

    async def merged(self, account_id: UUID, content: Content, contact: Contact | None) -> Merged:
        """The content as this contact would get it; without a contact: as somebody of whom nothing is known."""
        properties = await self.sending.properties(account_id)
        own: dict[str, str] = {}
        if contact is not None:
            member = Member(contact.id, contact.email, contact.first_name, contact.last_name, False, None, contact.properties)
            own = own_values({**dict.fromkeys(merge.FIELDS, ""), **{key: each.number for key, each in properties.items()}}, member)
        values = Values(own, f"{self.base_url}{PATH}", {key: each.fallback for key, each in properties.items()})

        def make() -> Merged:
            plain = merge.text_of(content.html) if content.text is None and content.html else content.text
            return Merged(
                merge.parse(content.subject).subject(values),
                merge.parse(content.preview_text).line(values),
                merge.parse(content.html).html(values) if content.html else None,
                merge.parse(plain).text(values) if plain else None,
            )

        return make() if len(content.html or "") + len(content.text or "") < IN_THREAD else await self.in_thread(make)

    async def send_test(self, account_id: UUID, content: Content, contact: Contact | None, to: str, line: Line) -> UUID:
        """Send it to one address, through intake like any other email; returns its ID. Raises NotSent."""
        account = await self.accounts.get(account_id)
        if account is None or account.suspended_at is not None:
            raise NotSent(SUSPENDED, 403)
        if not content.html and not content.text:
            raise NotSent("The broadcast has no content yet.")
        try:
            sender = parse_mailbox(content.sender)
        except AddressError:
            raise NotSent("Choose the address that it comes from first.") from None
        merged = await self.merged(account_id, content, contact)
        html = merged.html and merge.with_preview(merged.html, merged.preview_text)
        subject = f"Test: {merged.subject}" if merged.subject else "Test"
        email = Incoming(sender, (parse_mailbox(to),), subject, EmailContent(html=html, text=merged.text), source=SOURCE)
        return sent(await self.intake.submit(Caller.without_key(account), [email], lines=[line]), "It couldn’t be sent. Try again.")
