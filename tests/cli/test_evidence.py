"""`mailsvc evidence`: the archive for auditors."""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
import pytest_twisted
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from mailsvc import __version__
from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess


@pytest.fixture
def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess.of(pool, tmp_path, monkeypatch)


@pytest_twisted.ensureDeferred
async def test_the_archive_has_what_an_auditor_asks_for_and_no_secrets(mailsvc: InProcess, tmp_path: Path) -> None:
    key, file = tmp_path / "audit.pem", tmp_path / "evidence.zip"
    more = f'[audit]\nsigning_key = "{key}"\n[metrics]\ntoken = "a-secret-of-the-operator"\n'
    mailsvc.config.write_text(mailsvc.config.read_text() + more)
    public = load_pem_public_key((await mailsvc.printed("audit", "key") + "\n").encode())
    account = await mailsvc.printed("account", "create", "Example")
    await mailsvc.printed("key", "create", "--account", account, "--name", "Shop", "--days", "30")
    await mailsvc.printed("account", "access", account, "--reason", "Ticket 7")
    await mailsvc.printed("evidence", "--since", "2020-01-01", "--output", str(file))
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}

    manifest = json.loads(content["manifest.json"])
    public.verify(content.pop("manifest.json.sig"), content.pop("manifest.json"))  # type: ignore[union-attr, call-arg]
    assert manifest["sha256"] == {name: hashlib.sha256(each).hexdigest() for name, each in content.items()}
    assert manifest["mailsvc"] == __version__
    everything = b"".join(content.values())
    for secret in (b"a-secret-of-the-operator", (tmp_path / "secret.key").read_bytes().split()[-1], key.read_bytes().split(b"\n")[1]):
        assert secret not in everything
    settings = json.loads(content["settings.json"])
    assert (settings["metrics.token"], settings["delivery.ehlo_name"]) == ("set", "out.example.net")
    [shop] = csv.DictReader(content[f"access/{account}.csv"].decode().splitlines())
    assert (shop["kind"], shop["name"], shop["unused"]) == ("key", "Shop", "no") and shop["expires"]
    [opened] = map(json.loads, content["access/operator.jsonl"].splitlines())
    assert (opened["account_id"], opened["reason"]) == (account, "Ticket 7") and "reads" not in opened
    verified = json.loads(content["audit/verification.json"])
    assert [(each["account_id"], each["problems"]) for each in verified["accounts"]] == [(account, [])]
    assert f"{account},operator,key created,1" in content["audit/entries.csv"].decode().splitlines()
    kept = json.loads(content["retention.json"])["days"]
    assert kept.keys() == {name.removeprefix("retention.") for name in settings if name.startswith("retention.")}
    names = {each["name"] for each in json.loads(content["sbom.cdx.json"])["components"]}
    assert {"twisted", "cryptography", "CPython"} <= names
    assert "exists" in (await mailsvc("evidence", "--since", "2020-01-01", "--output", str(file))).messages
