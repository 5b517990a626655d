"""The file of the encryption keys: made once, and rewritten as a whole when a key is added or begins to encrypt.

A key is added before the last line. There it decrypts but does not encrypt yet, so that every process knows it before the first
row needs it.
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

MOST = 255


def make(path: Path) -> bool:
    """A file that is there with a whole key in it, or not there; the first of several processes wins. Whether it was this one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _written(path, _text({1: AESGCM.generate_key(256)}))
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    _keep(path.parent)  # without this key everything that it encrypted is lost
    return True


def prepare(path: Path) -> int:
    """Add a key that does not encrypt yet, unless there is one; its number."""
    keys = dict(Keys.read(path.read_text(), str(path)).by_number)
    *others, (current, encrypting) = keys.items()
    waiting = [number for number, _ in others if number > current]
    if waiting:
        return max(waiting)
    number = current + 1
    if number > MOST:
        raise EncryptionError(f"{path}: key {current} is the last number that there can be.")
    _replace(path, {**dict(others), number: AESGCM.generate_key(256), current: encrypting})
    return number


def promote(path: Path, number: int) -> None:
    """From now on this key encrypts."""
    keys = dict(Keys.read(path.read_text(), str(path)).by_number)
    _replace(path, {**{other: key for other, key in keys.items() if other != number}, number: keys[number]})


def _replace(path: Path, keys: Mapping[int, bytes]) -> None:
    """Whoever owned the file owns the new one."""
    unfinished = _written(path, _text(keys))
    try:
        former = path.stat()
        unfinished.chmod(former.st_mode & 0o777)
        with contextlib.suppress(PermissionError):
            os.chown(unfinished, former.st_uid, former.st_gid)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _keep(path.parent)


def _text(keys: Mapping[int, bytes]) -> str:
    return "".join(f"{number} {base64.b64encode(key).decode()}\n" for number, key in keys.items())


def _written(path: Path, text: str) -> Path:
    fd, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return Path(unfinished)


def _keep(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
