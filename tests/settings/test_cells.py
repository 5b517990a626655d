"""Settings that differ for single cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings

GENERAL: dict[str, Any] = {
    "base_url": "https://api.example.com",
    "database": {"url": "postgresql://x", "pool": 7},
    "delivery": {"ehlo_name": "out.example.com"},
    "smtp": {"self_signed": "tls", "listen": {"25": "tcp:25", "465": "tcp:465"}},
    "regions": {"us-east-1": {"host": "out.example.com", "api": "https://us.example.com"}},
}
TWO = """
base_url = "https://api.example.com"
[database]
url = "postgresql://x"
[delivery]
ehlo_name = "out.example.com"
[smtp]
listen = {}
[cells.us_1]
[cells.us_2.http]
listen = ["tcp:8102"]
"""


def of(cell: str | None, **tables: object) -> Settings:
    return loading.check({**GENERAL, "cells": tables}, {} if cell is None else {"MAILSVC_DATABASE__CELL": cell})


def test_a_cell_replaces_single_settings_and_keeps_the_others() -> None:
    own = {
        "base_url": "https://us-1.example.com",
        "database": {"pool": 3},
        "smtp": {"listen": {"465": "tcp:9465"}},
        "regions": {"us-east-1": {"host": "out-1.example.com"}},
    }
    found = of("us_1", us_1=own, us_2={"base_url": "https://us-2.example.com"})
    assert found.base_url == "https://us-1.example.com"
    assert (found.database.cell, found.database.url, found.database.pool) == ("us_1", "postgresql://x", 3)
    assert dict(found.smtp.listen) == {"465": "tcp:9465"}, "the value is replaced as a whole"
    assert (found.regions["us-east-1"].host, found.regions["us-east-1"].api) == ("out-1.example.com", "https://us.example.com")


def test_other_cells_and_processes_without_a_cell_have_the_general_settings() -> None:
    for cell in ("us_3", None):
        assert of(cell, us_1={"database": {"pool": 3}}).database.pool == 7


def test_the_cell_may_be_named_in_the_file_and_the_environment_overrides_its_table() -> None:
    given = {**GENERAL, "database": {"url": "postgresql://x", "cell": "us_1"}, "cells": {"us_1": {"database": {"pool": 3}}}}
    assert loading.check(given, {}).database.pool == 3
    assert loading.check(given, {"MAILSVC_DATABASE__POOL": "5"}).database.pool == 5


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"us_1": {"htpp": {}}}, r"In \[cells.us_1\]: The setting htpp does not exist."),
        ({"us_1": {"http": {"lisen": []}}}, r"In \[cells.us_1\]: The setting http.lisen does not exist."),
        ({"us_1": {"database": {"cell": "us_2"}}}, "The setting cells.us_1.database.cell does not exist"),
        ({"US-1": {}}, r"The table \[cells.US-1\] has a wrong name; expected a name of a-z"),
        ({"us_1": 5}, r"The setting cells is not valid; expected tables of settings, such as \[cells.us_1\]."),
    ],
)
def test_a_mistake_in_any_table_is_reported(tables: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        of(None, **tables)


def file(folder: Path, more: str = "") -> Path:
    path = folder / "mailsvc.toml"
    path.write_text(TWO + more)
    return path


def test_all_cells_with_settings_are_loaded_or_those_that_are_chosen(tmp_path: Path) -> None:
    found = loading.load_cells(file(tmp_path), (), {})
    assert {cell: each.http.listen for cell, each in found.items()} == {
        "us_1": ("tcp:8025:interface=127.0.0.1",), "us_2": ("tcp:8102",),
    }  # fmt: skip
    assert list(loading.load_cells(file(tmp_path), ["us_2"], {})) == ["us_2"]


@pytest.mark.parametrize(
    ("more", "chosen", "message"),
    [
        ("[cells.us_3]", (), r"us_1 and us_3 both have tcp:8025:interface=127.0.0.1 \(http.listen\). Set another one in \[cells.us_3\]."),
        ("[cells.us_3.metrics]\nlisten = ['unix:/run/m']\n[cells.us_3.http]\nlisten = ['unix:/run/m']\n[cells.us_1.control]", (), None),
        ("[cells.us_1.http]\nlisten = []", (), "For the cell us_1: The setting http.listen is empty"),
        ("", ("Us",), "The cell 'Us' has a wrong name; expected a name of a-z"),
        ("", ("us_1", "us_4"), "The cells us_1 and us_4 both have tcp:8025"),
    ],
)  # fmt: skip
def test_cells_of_one_machine_need_ports_and_files_of_their_own(
    tmp_path: Path, more: str, chosen: tuple[str, ...], message: str | None
) -> None:
    if message is None:
        assert len(loading.load_cells(file(tmp_path, more), chosen, {})) == 3
    else:
        with pytest.raises(SettingsError, match=message):
            loading.load_cells(file(tmp_path, more), chosen, {})


@pytest.mark.parametrize("setting", ["control.socket", "database.restore_marker", "audit.anchor_file", "privacy.journal"])
def test_cells_share_no_file(tmp_path: Path, setting: str) -> None:
    table, _, key = setting.partition(".")
    more = "".join(f"[cells.{cell}.{table}]\n{key} = '/var/lib/one'\n" for cell in ("us_3", "us_2"))
    with pytest.raises(SettingsError, match=rf"The cells us_2 and us_3 both have /var/lib/one \({setting}\)"):
        loading.load_cells(file(tmp_path, more + "[cells.us_3.http]\nlisten = ['tcp:8103']"), (), {})


def test_cells_need_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "mailsvc.toml"
    path.write_text(TWO.replace('url = "postgresql://x"', 'embedded = "postgres"'))
    with pytest.raises(SettingsError, match=r"The setting database\.url is missing; cells need one"):
        loading.load_cells(path, ["us_1"], {})


def test_a_file_without_such_tables_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mailsvc.toml"
    path.write_text("base_url = 'https://api.example.com'")
    with pytest.raises(SettingsError, match=r"No cell has settings of its own; expected tables such as \[cells.us_1\]"):
        loading.load_cells(path, (), {})
