"""What commands read and change: the connection, the session and its policy, and the mail transaction in progress.

Commands (commands, body) depend on this module; the loop that runs them (conversation) depends on both.
"""

from __future__ import annotations

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.connection import ServerConnection
from mailsvc.smtp.server.framing import RESPONSE_LIMIT, Overlong
from mailsvc.smtp.server.lines import LineReader
from mailsvc.smtp.server.replies import Refused
from mailsvc.smtp.server.session import Envelope, Listener, Session, SessionPolicy
from mailsvc.smtp.server.upload import Upload


@attrs.define(eq=False)
class ConversationState:
    connection: ServerConnection
    listener: Listener
    session: Session
    policy: SessionPolicy
    lines: LineReader
    envelope: Envelope | None = None
    upload: Upload | None = None  # the body that is being received
    recipient_refused: bool = False  # at least one, in this transaction
    excess_recipients: int = 0  # RCPT commands beyond the limit, in this transaction
    commands: int = 0  # since the connection, or its TLS, began
    non_mail_commands: int = 0  # since the last accepted mail

    def reset(self) -> None:
        """End the mail transaction, if there is one."""
        if self.upload is not None:
            self.upload.discard()
        self.envelope, self.upload, self.recipient_refused, self.excess_recipients = None, None, False, 0

    def restart(self) -> None:
        """After a TLS handshake nothing that was said before it counts (3207 §4.2)."""
        self.reset()
        self.session.restart()
        self.commands = 0

    def mail_accepted(self) -> None:
        self.session.mails += 1
        self.non_mail_commands = 0

    def transcribe(self, text: bytes) -> None:
        if self.session.transcript is not None:
            self.session.transcript.client(text)

    async def challenge(self, challenge: Reply) -> bytes:
        """Send a challenge of AUTH and return the client's response."""
        self.connection.send(challenge)
        line = await self.lines.line(RESPONSE_LIMIT)
        self.transcribe(b"(response)")
        if isinstance(line, Overlong):
            raise Refused(replies.LOGIN_TOO_LONG)
        return line
