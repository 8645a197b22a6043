"""What is in ``deploy`` fits the numbers and commands that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from tools.metrics import exposed, families

from chappe.cli.service import understood

DEPLOY: Final = Path(__file__).parent.parent.parent / "deploy"
RULES: Final = DEPLOY / "prometheus/chappe.rules.yml"
GRAFANA: Final = DEPLOY / "grafana/chappe.json"
NUMBERS: Final = {exposed(each): set(each.labels) for each in families()}
OF_PROMETHEUS: Final = {"job", "instance", "datasource"}


def read_yaml(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text())


def expressions(value: Any) -> list[str]:
    """Every ``expr`` of an object of JSON."""
    if isinstance(value, dict):
        return [each for key, found in value.items() for each in ([found] if key == "expr" else expressions(found))]
    return [each for found in value for each in expressions(found)] if isinstance(value, list) else []


def of_rules() -> list[tuple[str, str]]:
    return [
        (rule["expr"], " ".join(rule["annotations"].values()))
        for group in read_yaml(RULES)["groups"]
        for rule in group["rules"]
    ]


def of_grafana() -> list[tuple[str, str]]:
    board = json.loads(GRAFANA.read_text())
    targets = [each for panel in board["panels"] for each in panel.get("targets", ())]
    assert sorted(each["expr"] for each in targets) == sorted(expressions(board))
    return [(each["expr"], each["legendFormat"]) for each in targets]


@pytest.mark.parametrize("source", [of_rules, of_grafana])
def test_alerts_and_panels_ask_for_numbers_and_labels_that_there_are(source: Any) -> None:
    found = source()
    assert len(found) > 10
    for expression, text in found:
        names = set(re.findall(r"\bchappe_\w+", expression))
        assert names <= set(NUMBERS), f"{expression}: {names - set(NUMBERS)}"
        labels = OF_PROMETHEUS.union(*(NUMBERS[each] for each in names))
        used = set(re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", text))
        asked = {each for pair in used for each in pair if each}
        for some in re.findall(r"\bby \(([^)]*)\)", expression):
            asked |= {each.strip() for each in some.split(",")}
        assert asked <= labels, f"{expression}: {asked - labels}"


def test_every_alert_says_what_to_do_and_how_bad_it_is() -> None:
    for group in read_yaml(RULES)["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert rule["annotations"]["description"].endswith(".")


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = json.loads(GRAFANA.read_text())["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    assert len({(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}) == len(panels)


FIRING: Final = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'chappe_store_refusing_writes{{job="chappe", instance="a", kind="store", member="s"}}'
        values: '0 0 1 1 1'
      - series: 'chappe_group_lag_seconds{{job="chappe", instance="a", kind="store", member="s", group="g", topic="t"}}'
        values: '400x10'
    alert_rule_test:
      - {{eval_time: 1m, alertname: ChappeStoreRefusesWrites, exp_alerts: []}}
      - eval_time: 4m
        alertname: ChappeStoreRefusesWrites
        exp_alerts:
          - exp_labels: {{severity: critical, job: chappe, instance: a, kind: store, member: s}}
            exp_annotations:
              summary: The disk of store s refuses writes
              description: >-
                Producers are held back. Make room or mend the disk: it goes on by itself, and nothing acknowledged is
                lost.
      - {{eval_time: 4m, alertname: ChappeGroupLags, exp_alerts: []}}
      - eval_time: 6m
        alertname: ChappeGroupLags
        exp_alerts:
          - exp_labels: {{severity: warning, group: g, topic: t}}
            exp_annotations:
              summary: Group g is 6m 40s behind in t
              description: >-
                Look at its members (chappe groups show g) and add some, before retention overtakes it.
"""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_takes_rules_and_configuration_and_alerts_fire(tmp_path: Path) -> None:
    test = tmp_path / "test.yml"
    test.write_text(FIRING.format(rules=RULES))
    config = DEPLOY / "prometheus/prometheus.yml"
    for command in (["check", "rules", RULES], ["check", "config", config], ["test", "rules", test]):
        done = subprocess.run(["promtool", *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_of_the_containers_is_understood() -> None:
    services = read_yaml(DEPLOY / "compose.yaml")["services"]
    assert set(services) == {"tower", "store-1", "store-2", "dashboard", "pipeline"}
    for each in services.values():
        words, _ = understood(each["command"])
        assert words[0] in ("tower", "store", "dashboard", "pipeline")
        assert each["command"][each["command"].index("--metrics") + 1] == "0.0.0.0:9464"
        assert "9464/health/ready" in each["healthcheck"]["test"][-1]
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", ()))
    file = (DEPLOY / "Containerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", file, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", file, re.MULTILINE)
    assert json.loads(entry) == ["chappe"]
    assert understood(json.loads(command))[0] == ["up"]
    for pipeline in re.findall(r"/pipelines/([\w.]+)", str(services["pipeline"]["command"])):
        assert (DEPLOY.parent / "examples/pipelines" / pipeline).exists()
