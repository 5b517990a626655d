"""What an error means to the operator, in one sentence. For starting and for the command."""

from __future__ import annotations

from twisted.internet.error import CannotListenError

from mailsvc.monitoring.logs import without_secrets
from mailsvc.settings.reader import SettingsError
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.postgres.errors import StoreError, Unavailable
from mailsvc.store.postgres.migrate import MigrationFailed, TooOld
from mailsvc.store.postgres.system_user import EmbeddedError


def explain(error: BaseException) -> str | None:
    """The sentence, without secrets; None when nobody expected the error."""
    match error:
        case SettingsError() | EmbeddedError() | EncryptionError():
            sentence = str(error)
        case Unavailable():
            sentence = f"The database cannot be reached: {error.reason}"
        case MigrationFailed() | TooOld() | StoreError():
            sentence = f"The database cannot be used: {error}"
        case CannotListenError():
            sentence = f"It cannot listen on {error.interface or 'any address'}, port {error.port}: {error.socketError.strerror}."
        case _:
            return None
    return without_secrets(sentence)
