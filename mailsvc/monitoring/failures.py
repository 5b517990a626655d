"""Turns expected errors into messages for the operator, at startup and for the `mailsvc` command."""

from __future__ import annotations

from twisted.internet.error import CannotListenError

from mailsvc.monitoring.logs import without_secrets
from mailsvc.settings.reader import SettingsError
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.postgres.errors import StoreError, Unavailable
from mailsvc.store.postgres.migrate import MigrationFailed, TooOld
from mailsvc.store.postgres.system_user import EmbeddedError


def explain(error: BaseException) -> str | None:
    """Returns the message, without secrets, or None for an unexpected error."""
    match error:
        case SettingsError() | EmbeddedError() | EncryptionError():
            message = str(error)
        case Unavailable():
            message = f"The database cannot be reached: {error.reason}"
        case MigrationFailed() | TooOld() | StoreError():
            message = f"The database cannot be used: {error}"
        case CannotListenError():
            message = f"Cannot listen on {error.interface or 'any address'}, port {error.port}: {error.socketError.strerror}."
        case _:
            return None
    return without_secrets(message)
