"""`mailsvc domain …` where it needs no DNS. With a daemon and a DNS server: tests/end_to_end/test_domains."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess
from tests.cli.test_cli import Command


@pytest_twisted.ensureDeferred
async def test_domain_list_and_zone(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailsvc = InProcess.of(pool, tmp_path, monkeypatch)

    async def printed(*words: str) -> str:
        return (await mailsvc.prints(*words)).output.strip()

    one, other = await printed("account", "create", "One"), await printed("account", "create", "Other")
    assert "The region must be one of: eu-west-1, us-east-1." in await mailsvc.refuses(
        "domain", "add", "a.example", "--account", one, "--region", "mars"
    )
    assert "domains.dkim_zone is missing" in await mailsvc.refuses("domain", "zone")
    assert "There is no domain a.example." in await mailsvc.refuses("domain", "rotate", "a.example")
    await printed("domain", "add", "a.example", "--account", one)
    assert await printed("domain", "signs", "a.example", "rsa") == "a.example signs with rsa."
    assert await printed("domain", "signs", "a.example", "both") == "a.example signs with rsa and ed25519."
    assert "There is no domain x.example." in await mailsvc.refuses("domain", "signs", "x.example", "both")
    assert "'sha1'" in await mailsvc.refuses("domain", "signs", "a.example", "sha1", status=2)
    mailsvc.config.write_text(mailsvc.config.read_text() + 'dkim_zone = "dkim.example.net"\n')
    added = await printed("domain", "add", "b.example", "--account", other)
    assert added.count(" CNAME ms") == 4 and "DKIM1" not in added
    zone = (await printed("domain", "zone")).splitlines()
    assert [line.split(".")[0] for line in zone] == ["ms1e", "ms1r"] and all('dkim.example.net. TXT "v=DKIM1' in line for line in zone)
    listed = (await printed("domain", "list")).splitlines()
    assert [line.split("\t")[:4] for line in listed] == [
        ["a.example", "not_started", "us-east-1", "One"],
        ["b.example", "not_started", "us-east-1", "Other"],
    ]
    assert (await printed("domain", "list", "--account", "Other")).startswith("b.example")
    rotated = (await printed("domain", "rotate", "b.example")).splitlines()
    assert [line.split(".")[0] for line in rotated] == ["ms2r", "ms2e"]
    assert "are already being rotated" in await mailsvc.refuses("domain", "rotate", "b.example")
    looks = await mailsvc("domain", "add", "аррӏе.example", "--account", one)
    assert looks.status == 0 and "mistaken for another name" in looks.messages


@pytest.mark.slow
def test_account_selects_among_domains_with_one_name(tmp_path: Path, database: str) -> None:
    mailsvc = Command(tmp_path, database)
    one, other = mailsvc.prints("account", "create", "One"), mailsvc.prints("account", "create", "Other")
    for account in (one, other):
        mailsvc.prints("domain", "add", "a.example", "--account", account)
    assert "already" in mailsvc.refuses("domain", "add", "a.example", "--account", one)
    assert "2 accounts have added a.example and none has verified it. Choose one with --account:" in mailsvc.refuses(
        "domain", "signs", "a.example", "rsa"
    )
    assert mailsvc.prints("domain", "signs", "a.example", "rsa", "--account", "Other") == "a.example signs with rsa."
    mailsvc.config.write_text(mailsvc.config.read_text() + "allow_trust = true\n" * ("allow_trust" not in mailsvc.config.read_text()))
    assert mailsvc("domain", "trust", "a.example", "--account", one).stdout == "a.example can send.\n"
    assert "a.example is already verified or trusted for another account." in mailsvc.refuses(
        "domain", "trust", "a.example", "--account", other
    )
    assert mailsvc.prints("domain", "signs", "a.example", "both") == "a.example signs with rsa and ed25519."
