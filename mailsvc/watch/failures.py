"""What an error means to the operator, in one sentence. For starting and for the command."""

from __future__ import annotations

from twisted.internet.error import CannotListenError

from mailsvc.configfile import SettingsError
from mailsvc.store.errors import StoreError, Unavailable
from mailsvc.store.migrate import MigrationFailed, TooOld
from mailsvc.store.owner import EmbeddedError
from mailsvc.store.seal import SealError
from mailsvc.watch.logs import without_secrets


def explain(error: BaseException) -> str | None:
    """The sentence, without secrets; None when nobody expected the error."""
    match error:
        case SettingsError() | EmbeddedError() | SealError():
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
