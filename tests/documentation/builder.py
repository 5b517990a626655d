"""etc/site/build.py as a module, and the Markdown that it makes."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

from tests.end_to_end.rig import PROJECT


@cache
def builder() -> Any:
    spec = importlib.util.spec_from_file_location("site_build", PROJECT / "etc/site/build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def pages() -> dict[str, str]:
    found: dict[str, str] = builder().sources()
    return found
