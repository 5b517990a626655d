"""The alert rules and the dashboard for Grafana, with Prometheus' own tool where it is installed (Debian package: prometheus)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ETC = Path(__file__).parents[2] / "etc"
BOARD: dict[str, Any] = json.loads((ETC / "monitoring/grafana.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
with_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian package: prometheus).")


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_the_alert_rules_are_valid_and_fire_when_they_should() -> None:
    promtool("check", "rules", ETC / "alerts.yml")
    promtool("test", "rules", *sorted((ETC / "monitoring").glob("*_test.yml")))


@with_promtool
def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    queries = [target["expr"].replace("$__rate_interval", "5m") for panel in PANELS for target in panel.get("targets", ())]
    rules = [{"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert len(queries) > 25
    promtool("check", "rules", tmp_path / "rules.yml")


def test_every_alert_has_a_summary_and_a_name_of_its_own() -> None:
    rules = yaml.safe_load((ETC / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["annotations"]["summary"].endswith(".") for rule in rules)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_panels_use_the_chosen_source_and_explain_themselves() -> None:
    assert BOARD["schemaVersion"] >= 36 and [one["name"] for one in BOARD["templating"]["list"]] == ["datasource", "job", "instance"]
    for panel in PANELS:
        assert panel["title"] and panel["type"] in ("row", "stat", "timeseries")
        if panel["type"] != "row":
            assert panel["description"].endswith(".") and panel["datasource"]["uid"] == "${datasource}"
            assert all(target["refId"] and target["datasource"] == panel["datasource"] for target in panel["targets"])
