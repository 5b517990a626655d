"""What one contact would get of a draft, and the test email. The unsubscribe link in both is a sample that unsubscribes nobody."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from uuid import UUID

import attrs

from mailsvc.broadcasts.links import PATH
from mailsvc.broadcasts.previews import Texts, merged, values_of
from mailsvc.dashboard.emails.sending import SUSPENDED, NotSent, sent
from mailsvc.dashboard.emails.trial import SOURCE
from mailsvc.incoming import Content as EmailContent
from mailsvc.incoming import Incoming
from mailsvc.intake import Intake
from mailsvc.mail import merge
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.runtime.offload import InThread
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.values import Contact
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.audit import Line

_LINKS = '<base target="_blank">'
_DARK = '<meta name="color-scheme" content="dark"><style>:root{color-scheme:dark;background:#121212;color:#e8e8e8}</style>'
# What can precede the contents of the head: comments, the document type, and the tags of `html` and `head`.
_BEGINNING = re.compile(
    r"""\ufeff?(?>(?:\s+|<!--(?:-?>|.*?--!?>)|<[!?](?!--)[^>]*>|<(?:html|head)(?=[\s/>])(?>(?:[^<>"']+|"[^"]*"|'[^']*')*)>)*)""",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
Reserve = Callable[[int], Awaitable[None]]  # memory for long texts, in bytes


def framed(html: str, *, dark: bool) -> str:
    """The HTML for the preview frame: links open in a new tab, and `dark` asks for its dark variant."""
    found = _BEGINNING.match(html, 0, 5000)
    place = found.end() if found is not None else 0
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

    async def merged(self, account_id: UUID, content: Content, contact: Contact | None, reserve: Reserve) -> Texts:
        """The content as this contact would get it; without a contact: as somebody of whom nothing is known."""
        values = await values_of(self.sending, account_id, contact, f"{self.base_url}{PATH}")
        return await merged(Texts(content.subject, content.preview_text, content.html, content.text), values, self.in_thread, reserve)

    async def send_test(self, account_id: UUID, content: Content, contact: Contact | None, to: str, line: Line, reserve: Reserve) -> UUID:
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
        texts = await self.merged(account_id, content, contact, reserve)
        html = texts.html and merge.with_preview(texts.html, texts.preview_text)
        subject = f"Test: {texts.subject}" if texts.subject else "Test"
        email = Incoming(sender, (parse_mailbox(to),), subject, EmailContent(html=html, text=texts.text), source=SOURCE)
        return sent(await self.intake.submit(Caller.without_key(account), [email], lines=[line]), "It couldn’t be sent. Try again.")
