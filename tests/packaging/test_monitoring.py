"""manifests/monitoring: each metric of the dashboard and the alerts exists, and each alert has a next step."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from kvasir_contract.api import INSTANCE_LABEL, MANAGED_BY_LABEL, MANAGER
from kvasir_contract.endpoints import OPS_PORT_NAME
from kvasir_operator.operator_metrics import OperatorMetrics
from tools import grafana_dashboard

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "manifests" / "monitoring"
PAGE = (ROOT / "docs" / "metrics.md").read_text()
NAME = re.compile(r"\b(?:vllm:|kvasir:|kvasir_|http_)\w+")


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    return [rule for group in rules["spec"]["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    panels = grafana_dashboard.dashboard()["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [*shown, *(alert["expr"] for alert in alerts())]


def operators_metrics() -> set[str]:
    registry = CollectorRegistry()
    OperatorMetrics(registry)
    return {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}


def listed(page: str) -> set[str]:
    """Return the metrics in the tables of a page. `…_ready` continues the name before it."""
    found: set[str] = set()
    for line in page.splitlines():
        if not line.startswith("| `"):
            continue
        first = ""
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            first = first or name
            found.add(name if not name.startswith("…") else first.rpartition("_")[0] + name.removeprefix("…"))
    return found


def test_the_page_lists_exactly_the_operators_metrics() -> None:
    section = PAGE.partition("\n## Operator")[2].partition("\n## ")[0]
    assert listed(section) == operators_metrics()


def test_the_dashboard_is_the_generated_one() -> None:
    assert grafana_dashboard.FILE.read_text() == grafana_dashboard.text(), "run python -m tools.grafana_dashboard"


@pytest.mark.parametrize("query", queries())
def test_each_metric_of_a_query_exists(query: str) -> None:
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(query)}
    assert names
    assert names <= listed(PAGE)


def test_each_alert_names_its_cause_and_the_next_step() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names))
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "runbook"}, alert["alert"]
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_the_page_lists_every_alert() -> None:
    section = PAGE.partition("\n## Monitoring in a cluster")[2].partition("\n## ")[0]
    assert listed(section) == {alert["alert"] for alert in alerts()}


def test_pod_monitors_select_the_pods_of_services() -> None:
    services, operator = yaml.safe_load_all((MONITORING / "pod-monitors.yaml").read_text())
    (endpoint,) = services["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == OPS_PORT_NAME
    assert services["spec"]["selector"]["matchLabels"] == {MANAGED_BY_LABEL: MANAGER}
    source = "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", INSTANCE_LABEL)
    assert {"sourceLabels": [source], "targetLabel": "service"} in endpoint["relabelings"]
    assert operator["spec"]["podMetricsEndpoints"][0]["honorLabels"] is True
