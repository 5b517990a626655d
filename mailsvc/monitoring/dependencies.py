"""The software bill of materials, as CycloneDX 1.5: of this installation, or of a build (`python -m mailsvc.monitoring.dependencies`)."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from mailsvc import __version__


def bill_of_materials(now: datetime) -> Mapping[str, Any]:
    """It says what is installed, not what is known to be vulnerable: that changes daily."""
    found = {each.metadata["Name"].lower(): each for each in metadata.distributions() if each.metadata["Name"]}
    components = [_component(name, each) for name, each in sorted(found.items()) if name != "mailsvc"]
    python = {"type": "platform", "bom-ref": "python", "name": platform.python_implementation(), "version": platform.python_version()}
    return _bill(now, [python, *components])


def bill_of_build(lock: str, packages: Mapping[str, Any], now: datetime) -> Mapping[str, Any]:
    """What a wheel is installed with (requirements.lock, with the hashes of the files), and what the scripts in it are built from
    (package-lock.json)."""
    return _bill(now, [*_locked(lock), *_scripts(packages)])


def _bill(now: datetime, components: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    about = {
        "timestamp": now.isoformat(timespec="seconds"),
        "component": {"type": "application", "bom-ref": "mailsvc", "name": "mailsvc", "version": __version__},
    }
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": about, "components": components}


def _locked(lock: str) -> Iterator[Mapping[str, Any]]:
    for entry in lock.replace("\\\n", " ").splitlines():
        requirement, *options = entry.split()
        name, version = requirement.split("==")
        url = f"pkg:pypi/{name}@{version}"
        hashes = [{"alg": "SHA-256", "content": option.removeprefix("--hash=sha256:")} for option in options]
        yield {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url, "hashes": hashes}


def _scripts(packages: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for path, found in packages["packages"].items():
        if path and not found.get("optional"):  # such as the build tool for other systems
            name = path.rpartition("node_modules/")[2]
            url = f"pkg:npm/{name}@{found['version']}"
            yield {"type": "library", "bom-ref": url, "name": name, "version": found["version"], "purl": url}


def _component(name: str, found: metadata.Distribution) -> Mapping[str, Any]:
    url = f"pkg:pypi/{name.replace('_', '-')}@{found.version}"
    licence = found.metadata.json.get("license_expression")
    more = {} if licence is None else {"licenses": [{"expression": licence}]}
    return {"type": "library", "bom-ref": url, "name": name, "version": found.version, "purl": url, **more}


def main(lock: str, packages: str) -> None:
    """Print the bill of a build. Its date is SOURCE_DATE_EPOCH."""
    at = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), UTC)
    sys.stdout.write(json.dumps(bill_of_build(Path(lock).read_text(), json.loads(Path(packages).read_text()), at), indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
