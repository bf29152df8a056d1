"""The Grafana dashboard of services, which `python -m tools.grafana_dashboard` writes.

Its labels are those that manifests/monitoring/pod-monitors.yaml sets. `make test-dashboard` runs its queries on a
service.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[1] / "manifests" / "monitoring" / "dashboard.json"
WIDTH: Final = 24  # columns of Grafana's grid
PER_ROW: Final = 3
HEIGHT: Final = 8

_OF: Final = 'namespace=~"$namespace",service=~"$service"'
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str  # of Grafana
    queries: Mapping[str, str]  # by legend
    needs_operator: bool = False


def _rate(metric: str, *by: str) -> str:
    return f"sum by({','.join(by)}) (rate({metric}{{{_OF}}}[$__rate_interval]))"


def _value(metric: str, *by: str, of: str = _OF) -> str:
    return f"sum by({','.join(by)}) ({metric}{{{of}}})"


def _quantiles(metric: str) -> dict[str, str]:
    rate = _rate(f"{metric}_bucket", "le")
    return {f"p{share * 100:g}": f"histogram_quantile({share}, {rate})" for share in (0.5, 0.95, 0.99)}


def _or_zero(query: str) -> str:
    # events that a healthy service does not have
    return f"{query} or vector(0)"


ROWS: Final[Mapping[str, Sequence[Panel]]] = {
    "Services": (
        Panel("Ready", "short", {"{{service}}": f'kvasir_service_condition{{condition="Ready",{_OF}}}'}, True),
        Panel("Reason", "short", {"{{service}}: {{reason}}": f"kvasir_service_reason{{{_OF}}}"}, True),
        Panel("Ranks by phase", "short", {"{{phase}}": _value("kvasir_service_ranks", "phase")}, True),
        Panel(
            "Engines",
            "short",
            {
                "desired": _value("kvasir_service_engines_desired"),
                "ready": _value("kvasir_service_engines_ready"),
                "restarts": _value("kvasir_service_engines_restarts"),
            },
            True,
        ),
        Panel(
            "Frontends",
            "short",
            {
                "desired": _value("kvasir_service_frontends_desired"),
                "ready": _value("kvasir_service_frontends_ready"),
                "restarts": _value("kvasir_service_frontends_restarts"),
            },
            True,
        ),
        Panel("Wake from zero", "s", _quantiles("kvasir_service_wake_seconds"), True),
    ),
    "Traffic": (
        Panel("HTTP requests", "reqps", {"{{status}}": _rate("http_requests_total", "status")}),
        Panel(
            "Tokens",
            "short",
            {
                "prompt": _rate("vllm:prompt_tokens_total"),
                "cached prompt": _rate("vllm:prompt_tokens_cached_total"),
                "generated": _rate("vllm:generation_tokens_total"),
            },
        ),
        Panel(
            "Requests",
            "short",
            {
                "live": _value("kvasir:live_requests"),
                "running": _value("vllm:num_requests_running"),
                "waiting": _value("vllm:num_requests_waiting"),
                "held without an engine": _value("kvasir:held_requests"),
            },
        ),
        Panel("Ends", "reqps", {"{{finished_reason}}": _rate("vllm:request_success_total", "finished_reason")}),
        Panel("Rejected with 429", "reqps", {"rejected": _or_zero(_rate("vllm:admission_rejections_total"))}),
    ),
    "Latency": (
        Panel("Time to first token", "s", _quantiles("vllm:time_to_first_token_seconds")),
        Panel("Time between tokens", "s", _quantiles("vllm:inter_token_latency_seconds")),
        Panel("End to end", "s", _quantiles("vllm:e2e_request_latency_seconds")),
        Panel("Queues", "s", _quantiles("vllm:request_queue_time_seconds")),
        Panel("Prefill", "s", _quantiles("vllm:request_prefill_time_seconds")),
        Panel("Decode", "s", _quantiles("vllm:request_decode_time_seconds")),
    ),
    "Engines": (
        Panel("KV cache in use", "percentunit", {"{{engine}}": f"vllm:kv_cache_usage_perc{{{_OF}}}"}),
        Panel(
            "Prefix cache hits",
            "percentunit",
            {"hits": f"{_rate('vllm:prefix_cache_hits_total')} / {_rate('vllm:prefix_cache_queries_total')}"},
        ),
        Panel("Preemptions", "ops", {"{{engine}}": _rate("vllm:num_preemptions_total", "engine")}),
        Panel("Step", "s", _quantiles("kvasir:step_seconds")),
        Panel("Age of the current step", "s", {"{{engine}}": f"kvasir:engine_step_age_seconds{{{_OF}}}"}),
        Panel("Main thread", "percentunit", {"{{phase}}": _rate("kvasir:step_phase_seconds_total", "phase")}),
    ),
    "Moved requests": (
        Panel("Moved to another engine", "ops", {"moved": _or_zero(_rate("kvasir:migrations_total"))}),
        Panel("KV blocks from other engines", "ops", {"blocks": _or_zero(_rate("kvasir:kv_blocks_fetched_total"))}),
        Panel("NaN", "ops", {"requests": _or_zero(_rate("vllm:corrupted_requests_total"))}),
    ),
    "Operator": (
        Panel(
            "Reconciles", "ops", {"{{result}}": "sum by(result) (rate(kvasir_operator_reconciles_total[5m]))"}, True
        ),
        Panel(
            "Queue",
            "short",
            {
                "waiting": "sum(kvasir_operator_queue_depth)",
                "failing": "sum(kvasir_operator_failing_services)",
            },
            True,
        ),
        Panel(
            "Time of a reconcile",
            "s",
            {
                "p95": "histogram_quantile(0.95, sum by(le) (rate(kvasir_operator_reconcile_seconds_bucket[5m])))",
            },
            True,
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    return {
        "uid": "kvasir",
        "title": "Kvasir",
        "tags": ["kvasir"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _variable("namespace", ""), _variable("service", "$namespace")]},
        "panels": list(_panels()),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(label: str, namespace: str) -> dict[str, Any]:
    within = f'{{namespace=~"{namespace}"}}' if namespace else ""
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values(kvasir:live_requests{within}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            width = WIDTH // PER_ROW
            x, y = index % PER_ROW * width, top + index // PER_ROW * HEIGHT
            yield _panel(number, panel, {"h": HEIGHT, "w": width, "x": x, "y": y})
        top += -(-len(panels) // PER_ROW) * HEIGHT


def _panel(number: int, panel: Panel, place: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    FILE.write_text(text())
