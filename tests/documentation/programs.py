"""Compiles and runs the sample programs in each language, if this machine has what that takes. `run` is for tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from tests.end_to_end.clients.node import environment

CRATES = Path("/usr/share/cargo/registry")  # where Debian's packages of crates are
REQUIRED = os.environ.get("MAILSVC_TEST_SAMPLES", "").split()  # what `missing` does not skip, such as `PHP Ruby Rails .NET`


def _curl(folder: Path, programs: Sequence[str]) -> list[str]:
    (folder / "all.sh").write_text("set -e\n" + "\n".join(programs))
    return ["sh", "all.sh"]


def _python(folder: Path, programs: Sequence[str]) -> list[str]:
    (folder / "all.py").write_text(f"for program in {list(programs)!r}:\n    exec(program, {{}})\n")
    return [sys.executable, "all.py"]


def _files(folder: Path, programs: Sequence[str], suffix: str, load: str, begin: str = "") -> str:
    """Writes a file for each program and one that loads them all, which it returns."""
    for number, program in enumerate(programs):
        (folder / f"{number}.{suffix}").write_text(program, "utf-8")
    (folder / f"all.{suffix}").write_text(begin + "".join(load.format(number) + "\n" for number in range(len(programs))))
    return f"all.{suffix}"


def _node(folder: Path, programs: Sequence[str]) -> list[str]:
    return ["node", _files(folder, programs, "mjs", 'await import("./{}.mjs");')]


def _php(folder: Path, programs: Sequence[str]) -> list[str]:
    return ["php", _files(folder, programs, "php", 'require "{}.php";', "<?php\n")]


def _ruby(folder: Path, programs: Sequence[str]) -> list[str]:
    return ["ruby", _files(folder, programs, "rb", 'load "./{}.rb"')]


def _go(folder: Path, programs: Sequence[str]) -> list[str]:
    """One program: the `main` of each sample gets a name of its own."""
    (folder / "go.mod").write_text("module samples\n\ngo 1.19\n")
    for number, program in enumerate(programs):
        (folder / f"{number}.go").write_text(program.replace("\nfunc main() {", f"\nfunc sample{number}() {{"))
    calls = "".join(f"\tsample{number}()\n" for number in range(len(programs)))
    (folder / "all.go").write_text(f"package main\n\nfunc main() {{\n{calls}}}\n")
    return ["go", "run", "."]


def _rust(folder: Path, programs: Sequence[str]) -> list[str]:
    """One program with a module for each sample, and Debian's packages in the place of crates.io."""
    numbers = range(len(programs))
    (folder / ".cargo").mkdir()
    (folder / ".cargo/config.toml").write_text(
        f'[source.crates-io]\nreplace-with = "debian"\n\n[source.debian]\ndirectory = "{CRATES}"\n\n'
        "[net]\noffline = true\n\n[profile.dev]\ndebug = false\n"
    )
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "samples"\nversion = "0.0.0"\nedition = "2021"\n\n[dependencies]\nserde_json = "1"\n'
        'reqwest = { version = "0.11", default-features = false, features = ["blocking", "json"] }\n'
    )
    (folder / "src").mkdir()
    for number, program in enumerate(programs):
        (folder / f"src/sample{number}.rs").write_text(program.replace("\nfn main()", "\npub fn main()") + "\n")
    calls = "".join(f"    sample{number}::main()?;\n" for number in numbers)
    modules = "".join(f"mod sample{number};\n" for number in numbers)
    (folder / "src/main.rs").write_text(f"{modules}\nfn main() -> Result<(), Box<dyn std::error::Error>> {{\n{calls}    Ok(())\n}}\n")
    return ["cargo", "run", "--quiet"]


def _dotnet(folder: Path, programs: Sequence[str]) -> list[str]:
    for number, program in enumerate(programs):
        (folder / f"{number}.cs").write_text(_for_mono(program, f"Sample{number}"), "utf-8")
    calls = "".join(f"        Sample{number}.Run().GetAwaiter().GetResult();\n" for number in range(len(programs)))
    (folder / "all.cs").write_text(f"class All {{\n    static void Main() {{\n{calls}    }}\n}}\n")
    compiled = "mcs -langversion:latest -codepage:utf8 -r:System.Net.Http.dll -out:all.exe *.cs"
    return ["sh", "-c", f"{compiled} && exec mono all.exe"]


def _for_mono(program: str, name: str) -> str:
    """The same program for Mono's compiler, which knows C# 7.

    Four things are newer, and each has an exact equivalent: imports that the SDK adds, statements outside of a class, `using` without a
    block, and raw strings.
    """
    imports = "".join(f"using {each};\n" for each in ("System", "System.Net.Http", "System.Threading.Tasks"))
    program = re.sub(r'"""\n(.*?)\n"""', lambda raw: '@"' + raw[1].replace('"', '""') + '"', program, flags=re.DOTALL)
    own = "".join(re.findall(r"^using [\w.]+;\n", program, re.MULTILINE))
    statements = re.sub(r"^using [\w.]+;\n", "", program, flags=re.MULTILINE)
    statements, blocks = re.subn(r"^using (var .*);$", r"using (\1) {", statements, flags=re.MULTILINE)
    return f"{imports}{own}class {name} {{ public static async Task Run() {{\n{statements}\n{'}' * (blocks + 2)}\n"


# For each language: what writes the programs and returns the command that runs them, the commands that this needs, the files that it needs
# (patterns below /usr), and Debian's packages with all of that.
RUNNERS: Mapping[str, tuple[Callable[[Path, Sequence[str]], list[str]], list[str], list[str], str]] = {
    "curl": (_curl, ["curl"], [], "curl"),
    "Python": (_python, [], [], ""),
    "Node.js": (_node, ["node"], [], ""),
    "Go": (_go, ["go"], [], "golang-go"),
    "PHP": (_php, ["php"], ["lib/php/*/curl.so"], "php-cli and php-curl"),
    "Ruby": (_ruby, ["ruby"], [], "ruby"),
    "Rust": (_rust, ["cargo"], ["share/cargo/registry/reqwest-0.11.*"], "cargo and librust-reqwest-dev"),
    ".NET": (_dotnet, ["mcs", "mono"], ["lib/mono/4.5/System.Net.Http.dll"], "mono-mcs, mono-runtime and libmono-system-net-http4.0-cil"),
}
# The crates alone take 20 seconds or more to compile.
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "Rust" else name for name in RUNNERS]


def missing(what: str, why: str) -> NoReturn:
    """Skips the test that needs this language or framework, or fails where it has to be there."""
    assert what not in REQUIRED, why
    pytest.skip(why)


def run(language: str, programs: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
    """Runs the programs one after the other in an empty folder, with these variables besides those of the tests.

    What compilers keep for the next time is beside the folder.
    """
    write, commands, files, packages = RUNNERS[language]
    path = environment()["PATH"]
    if not all(shutil.which(each, path=path) for each in commands) or not all(any(Path("/usr").glob(each)) for each in files):
        missing(language, f"The samples for {language} need {packages or commands[0]}, which this machine does not have.")
    given = {name: value for name, value in environment().items() if not name.startswith("RESEND_")}
    given |= {
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(folder.parent / "go"),
        "CARGO_TARGET_DIR": str(folder.parent / "cargo"),
    }
    done = subprocess.run(
        write(folder, programs), env={**given, **variables}, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
