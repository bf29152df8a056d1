import json
import math
from pathlib import Path

import pytest

from kvasir.benchmark.figures import RequestOutcome, load_figures, load_lines, percentiles, write_json
from kvasir.config.options import ConfigError


def streamed(start: float, times: list[float], tokens: int | None = None) -> RequestOutcome:
    outcome = RequestOutcome(start, prompt_tokens=10, tokens=tokens or len(times))
    for time in times:
        outcome.chunk_came(time)
    return outcome


def test_percentiles_are_of_the_values_in_milliseconds() -> None:
    figures = percentiles([n / 1000 for n in range(1, 101)])
    assert figures == {"mean": pytest.approx(50.5), "p50": pytest.approx(50.5), "p90": 91.0, "p99": 100.0}
    assert percentiles([]) is None


def test_times_are_counted_from_what_each_client_saw() -> None:
    outcomes = [streamed(1.0, [1.5, 1.6, 1.8]), streamed(2.0, [2.1], tokens=1)]
    figures = load_figures(outcomes, seconds=2.0)
    assert figures["requests_per_second"] == 1.0
    assert figures["output_tokens_per_second"] == 2.0
    assert figures["total_tokens_per_second"] == 12.0
    assert figures["ttft_ms"]["mean"] == pytest.approx(300)
    assert figures["tpot_ms"]["mean"] == pytest.approx(150)
    assert figures["itl_ms"]["p99"] == pytest.approx(200)
    assert figures["end_to_end_ms"]["mean"] == pytest.approx(450)


def test_failed_requests_are_counted_and_not_timed() -> None:
    failed, hung_up = RequestOutcome(0.0, error="503: busy"), streamed(0.0, [9.0])
    hung_up.hung_up = True
    figures = load_figures([failed, hung_up, streamed(0.0, [0.5, 1.0])], seconds=1.0)
    assert (figures["requests"], figures["finished"], figures["failed"], figures["hung_up"]) == (3, 1, 1, 1)
    assert figures["ttft_ms"]["mean"] == pytest.approx(500)


def test_whole_answers_have_no_times_of_tokens() -> None:
    whole = RequestOutcome(0.0, last=2.0, tokens=5, prompt_tokens=1)
    figures = load_figures([whole], seconds=2.0)
    assert figures["ttft_ms"] is figures["tpot_ms"] is figures["itl_ms"] is None
    assert figures["end_to_end_ms"]["mean"] == pytest.approx(2000)
    assert not any(line.startswith("TTFT") for line in load_lines(figures))


def test_figures_are_json_without_nan(tmp_path: Path) -> None:
    figures = load_figures([RequestOutcome(0.0, error="x")], seconds=1.0)
    write_json(str(tmp_path / "figures.json"), figures)
    read = json.loads((tmp_path / "figures.json").read_text(), parse_constant=lambda text: math.nan)
    assert read == figures
    with pytest.raises(ConfigError, match=r"--json .*: No such file"):
        write_json(str(tmp_path / "none" / "figures.json"), figures)
