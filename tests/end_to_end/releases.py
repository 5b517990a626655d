"""Builds two releases of mailsvc from two tags, each as a wheel in an environment of its own.

The tags are set in a copy of the repository: the earlier one on MAILSVC_TEST_EARLIER, or on the commit before the one that brought the
last migrations. What both need comes from the environment that runs the tests.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import attrs

from tests.end_to_end.rig import PROJECT

EARLIER, LATER = "release-earlier", "release-later"


@attrs.frozen
class Release:
    """`python` runs it; `migration` is its last one; `files` is its source."""

    tag: str
    python: Path
    files: Path
    migration: str


def run(*command: str | Path, folder: Path = PROJECT) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()


def earlier() -> str | None:
    """The commit of the earlier release; None if the history is not there, as in a shallow clone.

    It is the newest that has some of today's migrations and no others: the commit that brought its last one may be the first of several
    that only work together.
    """
    if given := os.environ.get("MAILSVC_TEST_EARLIER"):
        return run("git", "rev-parse", "--verify", f"{given}^{{commit}}")
    now = migrations("HEAD")
    for change in run("git", "rev-list", "--first-parent", "HEAD", "--", "mailsvc/store/migrations").splitlines():
        before = run("git", "rev-list", "--first-parent", "--skip=1", "--max-count=1", change)
        if before and migrations(before) < now:
            return before
    return None


def migrations(commit: str) -> set[str]:
    return {Path(name).stem for name in run("git", "ls-tree", "-r", "--name-only", commit, "mailsvc/store/migrations").splitlines()}


def build(folder: Path, commit: str) -> tuple[Release, Release]:
    """The earlier release, and the one that is checked out."""
    copy = folder / "repository"
    run("git", "clone", "--quiet", "--shared", "--no-checkout", PROJECT, copy)
    run("git", "tag", EARLIER, commit, folder=copy)
    run("git", "tag", LATER, run("git", "rev-parse", "HEAD"), folder=copy)
    return _release(copy, EARLIER), _release(copy, LATER)


def _release(repository: Path, tag: str) -> Release:
    home = repository.parent / tag
    run("git", "worktree", "add", "--quiet", "--detach", home / "source", tag, folder=repository)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", home / "wheel", home / "source")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv")
    python = home / "venv/bin/python"
    [wheel] = (home / "wheel").glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home / "venv"), "platbase": str(home / "venv")}))
    (packages / "shared.pth").write_text("\n".join(site.getsitepackages()))
    (home / "venv/bin/twistd").write_text(f"#!{python}\nfrom twisted.scripts.twistd import run\nrun()\n")
    (home / "venv/bin/twistd").chmod(0o755)
    found = run(python, "-c", "import mailsvc; print(mailsvc.__file__)", folder=home)
    assert found.startswith(str(packages)), found
    files = home / "source"
    return Release(tag, python, files, max(each.stem for each in (files / "mailsvc/store/migrations").glob("*.sql")))
