"""`make bounces`, on a folder of two mails: one is understood as expected, one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bounces import measure
from tests.bounces.test_families import SAMPLES

COLUMNS = "file\trecipient_no\trecipient\treason\thard\tstatus\treply\tsame_class\tnear_class\tdamaged"
ROWS = (
    "opensmtpd.eml\t1\trita@example.org\tuserunknown\t1\t5.1.1\t550\tuser_unknown\trecipient_refused\t0",
    "workmail.eml\t1\trita@example.org\tmailboxfull\t0\t5.2.2\t552\tmailbox_full\t\t0",
    "jmrp.eml\t1\trita@example.org\tfeedback\t0\t\t\t\t\t0",
)


def test_the_figures_and_the_misses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mails").mkdir()
    for row in ROWS:
        name = row.partition("\t")[0]
        (tmp_path / "mails" / name).write_bytes((SAMPLES / name).read_bytes())
    (tmp_path / "expected.tsv").write_text("\n".join([COLUMNS, *ROWS]) + "\n", "utf-8")
    measure.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 recipients, 2 undamaged final failures"
    assert {"recognised: 2 of 2 (100.0 %)", "same class: 1 of 2 (50.0 %)", "same action: 1 of 2 (50.0 %)"} <= set(lines)
    assert {"live addresses suppressed: 1", "complaints recognised: 1 of 1 (100.0 %)"} <= set(lines)
    [worst] = [line for line in lines if line.startswith("5 ")]
    assert worst.startswith("5 workmail.eml rita@example.org: bounce, user_unknown") and "expected mailboxfull" in worst


def test_it_is_skipped_without_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    measure.main([""])
    assert capsys.readouterr().out.startswith("Skipped")
