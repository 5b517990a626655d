"""The man page, docs/commands.md, and completion in shells: each has every command."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from mailsvc.cli import manual
from mailsvc.cli.main import main
from tests.cli.groups import commands_of
from tests.cli.test_audited import commands
from tests.cli.test_cli import Command


@pytest.mark.parametrize(("path", "text"), [(manual.MAN, manual.man()), (manual.MARKDOWN, manual.markdown())])
def test_the_generated_files_are_up_to_date(path: str, text: str) -> None:
    assert (manual.ROOT / path).read_text("utf-8") == text, "python -m mailsvc.cli.manual"


def test_every_command_and_option_is_in_the_man_page_and_on_the_page() -> None:
    man, page = manual.man().replace(r"\-", "-"), manual.markdown()
    for name in commands(main):
        assert f'.SS "mailsvc {name}' in man
        assert f"### `mailsvc {name}" in page or f"## mailsvc {name}" in page
    for option in ("--wait TEXT", "--revoke-keys", "--destination TEXT"):
        assert f"\\fB{option}\\fR" in man and f"- `{option}` " in page


def test_text_in_the_man_page_is_no_macro() -> None:
    assert manual._roff(".x `y-z`\n'q \\ \"\n\nw") == "\\&.x \\fBy\\-z\\fR\n\\&'q \\e \\(dq\n.PP\nw"


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_reads_the_man_page_without_warnings() -> None:
    done = subprocess.run(["groff", "-k", "-man", "-Tutf8", "-ww", manual.ROOT / manual.MAN], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mailsvc queue pause" in re.sub("\x1b\\[[0-9;]*m|.\b", "", done.stdout)


def test_the_man_page_is_in_the_wheel() -> None:
    setup = ConfigParser()
    setup.read(manual.ROOT / "setup.cfg")
    assert setup["options.data_files"]["share/man/man1"] == manual.MAN


@pytest.mark.parametrize(
    ("words", "begun", "expected"),
    [
        ([], "dom", ["domain"]),
        (["queue"], "re", ["release", "resume", "retry"]),
        (["member", "role", "ann@example.com"], "", ["admin", "developer", "marketing", "read-only", "billing"]),
        (["domain", "verify", "a.example"], "--w", ["--wait"]),
    ],
)
def test_completion_knows_commands_options_and_choices(words: list[str], begun: str, expected: list[str]) -> None:
    found = ShellComplete(main, {}, "mailsvc", "_MAILSVC_COMPLETE").get_completions(words, begun)
    assert [each.value for each in found] == expected


@pytest.mark.parametrize(("shell", "expected"), [("zsh", "#compdef mailsvc"), ("fish", "complete --no-files --command mailsvc")])
def test_completion_needs_no_settings(shell: str, expected: str) -> None:
    done = CliRunner().invoke(main, ["--config", "/nowhere/mailsvc.toml", "completion", shell])
    assert done.exit_code == 0 and expected in done.stdout
    assert CliRunner().invoke(main, ["completion", "csh"]).exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script(tmp_path: Path) -> None:
    mailsvc = Command(tmp_path, "postgresql://127.0.0.1:1/x")
    mailsvc.config.unlink()
    script = tmp_path / "completion"
    script.write_text(mailsvc.prints("completion", "bash"))
    done = subprocess.run(["bash", "-c", f"source {script} && complete -p mailsvc"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "mailsvc" in done.stdout, done


def test_every_command_says_what_it_does_in_one_sentence() -> None:
    def check(group: click.Group) -> None:
        for name, command in commands_of(group).items():
            assert command.help, name
            assert command.get_short_help_str(1000).strip(), name
            if isinstance(command, click.Group):
                check(command)

    check(main)
