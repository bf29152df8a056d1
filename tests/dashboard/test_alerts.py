"""The alerts of manifests/monitoring in Prometheus's own test of rules: when each of them fires, and when not."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboard.prometheus import program
from debian import NoProgram

ALERTS = Path(__file__).parents[2] / "manifests" / "monitoring" / "alerts.yaml"
OF = 'namespace="models",service="demo"'
RISING = "0+60x40"  # in each minute

# of an alert: series by name and labels, and the minute at which it fires
FIRING: dict[str, tuple[dict[str, str], int]] = {
    "KvasirServiceNotReady": ({f'kvasir_service_condition{{condition="Ready",{OF}}}': "1x4 0x30"}, 12),
    "KvasirServiceStalled": ({f'kvasir_service_condition{{condition="Stalled",{OF}}}': "-1x4 1x30"}, 8),
    "KvasirServiceDegraded": ({f'kvasir_service_condition{{condition="Degraded",{OF}}}': "1x40"}, 20),
    "KvasirEngineRestarts": ({f"kvasir_service_engines_restarts{{{OF}}}": "0x20 1 2 3 4x20"}, 35),
    "KvasirSlowWake": (
        {
            f'kvasir_service_wake_seconds_bucket{{le="300",{OF}}}': "0x40",
            f'kvasir_service_wake_seconds_bucket{{le="600",{OF}}}': "0x10 5x30",
            f'kvasir_service_wake_seconds_bucket{{le="+Inf",{OF}}}': "0x10 5x30",
        },
        30,
    ),
    "KvasirErrors": (
        {
            f'http_requests_total{{status="2xx",{OF}}}': RISING,
            f'http_requests_total{{status="5xx",{OF}}}': "0+6x40",
        },
        20,
    ),
    "KvasirRejectedRequests": ({f"vllm:admission_rejections_total{{{OF}}}": RISING}, 20),
    "KvasirLongQueue": (
        {
            f'vllm:request_queue_time_seconds_bucket{{le="10",{OF}}}': "0x40",
            f'vllm:request_queue_time_seconds_bucket{{le="30",{OF}}}': RISING,
            f'vllm:request_queue_time_seconds_bucket{{le="+Inf",{OF}}}': RISING,
        },
        20,
    ),
    "KvasirCorruptedRequests": ({f"vllm:corrupted_requests_total{{{OF}}}": "0x5 1x30"}, 8),
    "KvasirStepHangs": ({f'kvasir:engine_step_age_seconds{{engine="0",{OF}}}': RISING}, 5),
    "KvasirKVCacheFull": (
        {f"vllm:num_preemptions_total{{{OF}}}": RISING, f"vllm:kv_cache_usage_perc{{{OF}}}": "1x40"},
        20,
    ),
    "KvasirOperatorWithoutLeader": ({"kvasir_operator_leading": "0x40"}, 10),
    "KvasirReconcilesFail": ({"kvasir_operator_failing_services": "1x40"}, 20),
}
WELL = {
    **{
        f'kvasir_service_condition{{condition="{name}",{OF}}}': value
        for name, value in (("Ready", "1x60"), ("Stalled", "0x60"), ("Degraded", "0x60"))
    },
    f"kvasir_service_engines_restarts{{{OF}}}": "1x60",
    f'kvasir_service_wake_seconds_bucket{{le="30",{OF}}}': "0x10 5x50",
    f'kvasir_service_wake_seconds_bucket{{le="+Inf",{OF}}}': "0x10 5x50",
    f'http_requests_total{{status="2xx",{OF}}}': "0+60x60",
    f"vllm:admission_rejections_total{{{OF}}}": "3x60",
    f'vllm:request_queue_time_seconds_bucket{{le="1",{OF}}}': "0+60x60",
    f'vllm:request_queue_time_seconds_bucket{{le="+Inf",{OF}}}': "0+60x60",
    f"vllm:corrupted_requests_total{{{OF}}}": "1x60",
    f'kvasir:engine_step_age_seconds{{engine="0",{OF}}}': "2x60",
    f"vllm:num_preemptions_total{{{OF}}}": "7x60",
    f"vllm:kv_cache_usage_perc{{{OF}}}": "1x60",
    "kvasir_operator_leading": "1x60",
    "kvasir_operator_failing_services": "0x60",
}


def _case(series: dict[str, str], *checks: tuple[str, int, int]) -> dict[str, Any]:
    """Return a test: `checks` are an alert, a minute, and how often it fires then."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": times}],
            }
            for alert, minute, times in checks
        ],
    }


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return program().with_name("promtool")
    except NoProgram as missing:
        pytest.skip(str(missing))


def test_each_alert_fires_for_its_cause_only(promtool: Path, tmp_path: Path) -> None:
    rules = yaml.safe_load(ALERTS.read_text())["spec"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert set(names) == set(FIRING)
    tests = [_case(series, (alert, 0, 0), (alert, minute, 1)) for alert, (series, minute) in FIRING.items()]
    tests.append(_case(WELL, *((alert, 50, 0) for alert in FIRING)))
    cases = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    ended = subprocess.run(
        [promtool, "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
