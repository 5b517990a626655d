"""The file of encryption keys: created once, and replaced atomically when a key is added or promoted.

A new key is added before the last line: it decrypts but does not encrypt yet, so that all processes know it before a row needs it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mailsvc.store.encryption.secrets import EncryptionError, Keys

MAX_NUMBER = 255


def make(path: Path) -> bool:
    """Create the file with one key, atomically. Returns whether this call created it; of several processes only the first does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = written(path, _text({1: AESGCM.generate_key(256)}))
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync(path.parent)  # without this key everything that it encrypted is lost
    return True


def prepare(path: Path) -> int:
    """Add a key that does not encrypt yet, unless there is one. Returns its number."""
    keys = dict(Keys.read(path.read_text(), str(path)).by_number)
    *others, (current, encrypting) = keys.items()
    pending = [number for number, _ in others if number > current]
    if pending:
        return max(pending)
    number = current + 1
    if number > MAX_NUMBER:
        raise EncryptionError(f"{path}: key {current} has the highest possible number.")
    _replace(path, {**dict(others), number: AESGCM.generate_key(256), current: encrypting})
    return number


def promote(path: Path, number: int) -> None:
    """Make this the key that encrypts."""
    keys = dict(Keys.read(path.read_text(), str(path)).by_number)
    _replace(path, {**{other: key for other, key in keys.items() if other != number}, number: keys[number]})


def _replace(path: Path, keys: Mapping[int, bytes]) -> None:
    """Replace the file; it keeps its owner and mode."""
    temporary = written(path, _text(keys))
    try:
        former = path.stat()
        temporary.chmod(former.st_mode & 0o777)
        with contextlib.suppress(PermissionError):
            os.chown(temporary, former.st_uid, former.st_gid)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _text(keys: Mapping[int, bytes]) -> str:
    return "".join(f"{number} {base64.b64encode(key).decode()}\n" for number, key in keys.items())


def written(path: Path, text: str) -> Path:
    """A temporary file beside `path` with this text, which only its owner can read, synced to disk."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        Path(temporary).unlink()
        raise
    return Path(temporary)


def sync(folder: Path) -> None:
    """Afterwards the names in a folder survive a power failure."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def give(path: Path, like: Path) -> None:
    """Make `path` belong to the owner of `like`, if this user may."""
    owner = like.stat()
    with contextlib.suppress(PermissionError):
        os.chown(path, owner.st_uid, owner.st_gid)
