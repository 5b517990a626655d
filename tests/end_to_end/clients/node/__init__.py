"""The official Node client, called from Python: driver.mjs executes one command for each line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LIBRARIES = Path(os.environ.get("MAILSVC_NODE_LIBRARIES", Path(sys.prefix) / "node-libraries"))
WHY_NOT = f"The Node libraries are not in {LIBRARIES}; `make test` installs them there (etc/node-libraries)."


def installed() -> bool:
    """Whether there is something to drive. Where it has to be there, it is an error that it is not."""
    found = (LIBRARIES / "node_modules" / "resend").exists()
    assert found or os.environ.get("MAILSVC_TEST_NODE") != "required", WHY_NOT
    return found


def environment() -> dict[str, str]:
    """Where `node` is the one that was installed with the tests."""
    return {**os.environ, "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}


class Node:
    """One Node process with a client of the library for each key."""

    def __init__(self, base_url: str, key: str) -> None:
        self.key = key
        self._process = subprocess.Popen(
            ["node", str(Path(__file__).with_name("driver.mjs"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), "LIBRARIES": str(LIBRARIES), "BASE_URL": base_url},
        )

    def tell(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "thrown" not in answer, answer["thrown"]
        return answer

    def call(self, path: str, *args: Any, key: str | None = None) -> Any:
        """What a method gives as data; an AssertionError when it gives an error."""
        answer = self.tell({"path": path, "args": args, "key": key or self.key})
        assert answer["error"] is None, (path, answer["error"])
        return answer["data"]

    def fails(self, path: str, *args: Any, key: str | None = None) -> tuple[int, str]:
        """Status and name of the error that a method gives."""
        answer = self.tell({"path": path, "args": args, "key": key or self.key})
        assert answer["data"] is None and answer["error"]["message"], (path, answer)
        return answer["error"]["statusCode"], answer["error"]["name"]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
