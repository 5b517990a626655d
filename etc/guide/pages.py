"""Reads Markdown pages: their sections, code blocks and commands. Pure; the tests use it too."""

from __future__ import annotations

import re


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ )", page, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def blocks(text: str) -> list[str]:
    """The indented blocks, without their indentation."""
    found = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE)
    return [re.sub(r"^ {4}", "", each, flags=re.MULTILINE).strip("\n") for each in found if each.strip()]


def fenced(text: str) -> list[tuple[str, str]]:
    """The blocks between fences: language and code."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def programs(text: str, language: str) -> list[str]:
    return [code for written_in, code in fenced(text) if written_in == language]


def inline(text: str, program: str) -> list[str]:
    """The commands within sentences that call this program."""
    return re.findall(rf"`({re.escape(program)} [^`]+)`", text)


def commands(block: str) -> list[str]:
    """The commands of a block: continued lines and here documents belong to one."""
    found: list[str] = []
    end = ""
    for line in block.splitlines():
        if end or (found and found[-1].endswith("\\")):
            found[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line.strip():
            found.append(line)
            end = match[1] if (match := re.search(r"<<'(\w+)'$", line)) else ""
    return found


def bare(command: str) -> str:
    """Without the remarks at the ends of its lines."""
    return re.sub(r"\s{2,}# .*$", "", command, flags=re.MULTILINE)
