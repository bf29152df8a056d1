import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from kvasir.local.place import open_place
from kvasir.local.run import LocalService, curl_lines, welcome
from kvasir.local.supervision.process_spec import LocalPhase, Probe, ProcessSpec, ProcessState
from kvasir.local.supervision.screen import LiveScreen, PlainScreen, describe
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedProgress


def state(name: str = "engine-0", service: str = "demo") -> ProcessState:
    probe = Probe("http://127.0.0.1:1/", period=1, timeout=1, failures=1)
    return ProcessState(ProcessSpec(service, name, (), {}, probe, None, None, probe.url, grace=1))


def test_progress_is_in_the_unit_of_the_total() -> None:
    loading = state()
    loading.phase, loading.progress = Phase.LOADING, ReportedProgress(3_100_000_000, 15_000_000_000)
    assert describe(loading) == "Loading 3.1/15.0 GB"
    loading.progress = ReportedProgress(512, 2_000_000)
    assert describe(loading) == "Loading 0.0/2.0 MB"
    loading.progress = ReportedProgress(0, 0)
    assert describe(loading) == "Loading"


def test_ready_tells_how_long_it_took() -> None:
    ready = state()
    ready.phase, ready.ready_after = Phase.READY, 2.123
    assert describe(ready) == "Ready (2.1 s)"


def test_plain_screen_prints_changes_and_tenths(capsys: pytest.CaptureFixture[str]) -> None:
    screen, loading = PlainScreen(["welcome"], several=False), state()
    loading.phase = Phase.LOADING
    for done in range(100):
        loading.progress = ReportedProgress(done * 10**7, 10**9)
        screen.changed(loading)
    screen.serving()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*(f"rank 0: Loading {tenth / 10:.1f}/1.0 GB" for tenth in range(10)), "welcome"]


def test_a_failure_is_shown_once_and_each_restart_too(capsys: pytest.CaptureFixture[str]) -> None:
    screen, failing = PlainScreen([], several=True), state()
    failing.last_lines = ["Traceback", "ValueError"]
    for pause in (1, 2):
        failing.phase, failing.message = LocalPhase.RESTARTING, f"ended with exit code 1; next try in {pause} s"
        screen.changed(failing)
    assert capsys.readouterr().out.splitlines() == [
        "demo rank 0: Restarting: ended with exit code 1; next try in 1 s",
        "  Traceback",
        "  ValueError",
        "demo rank 0: Restarting: ended with exit code 1; next try in 2 s",
    ]


def test_warnings_of_the_logs_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen([], several=False)
    for name in ("engine-0", "engine-1", "engine-1"):
        ready = state(name)
        ready.phase, ready.warnings = Phase.READY, ["the context is limited"]
        screen.changed(ready)
    assert capsys.readouterr().out.splitlines() == [
        "rank 0: Ready",
        "rank 0: warning: the context is limited",
        "rank 1: Ready",
    ]


def test_live_screen_draws_a_row_per_process_in_order() -> None:
    output = io.StringIO()
    screen = LiveScreen([], several=False, console=Console(file=output, force_terminal=True, width=80))
    for number in (10, 2):
        screen.changed(state(f"engine-{number}"))
    screen.note("a note [with brackets]")
    screen.close()
    last = output.getvalue().rpartition("rank 2")
    assert "rank 10" in last[2]
    assert "a note [with brackets]" in output.getvalue()


def test_live_screen_draws_a_bar_while_bytes_are_loaded() -> None:
    output = io.StringIO()
    screen = LiveScreen([], several=False, console=Console(file=output, force_terminal=True, width=100))
    loading = state()
    screen.changed(loading)
    assert "━" not in output.getvalue()
    loading.phase, loading.progress = Phase.LOADING, ReportedProgress(5 * 10**9, 10 * 10**9)
    screen.changed(loading)
    screen.close()
    assert "━━━" in output.getvalue()


@pytest.mark.parametrize(
    ("use", "path"),
    [
        ("chat", "/v1/chat/completions"),
        ("generate", "/v1/completions"),
        ("embed", "/v1/embeddings"),
        ("classify", "/v1/score"),
    ],
)
def test_curl_line_is_a_command_with_a_json_body(
    use: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1)
    try:
        service = LocalService(place, [], served_name="it's a name", use=use, needs_key=True)
        (line,) = curl_lines(service)
        words = shlex.split(line)
        assert words[:2] == ["curl", f"{place.url}{path}"]
        assert json.loads(words[words.index("-d") + 1])["model"] == "it's a name"
        assert "Authorization: Bearer $KVASIR_API_KEY" in words
        assert any(line.endswith(f" chat {place.url}") for line in welcome(service)) == (use == "chat")
    finally:
        place.close()


def test_the_demo_models_lines_are_complete_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1)
    try:
        service = LocalService(place, [], served_name="demo", use="chat", needs_key=False, is_demo=True)
        lines = [line.strip() for line in welcome(service) if line.strip().startswith("curl ")]
    finally:
        place.close()
    plain, tool, form = (json.loads(shlex.split(line)[-1]) for line in lines)
    assert set(plain) == {"model", "messages"}
    assert tool["tools"][0]["function"]["name"] == "get_weather"
    assert form["response_format"]["json_schema"]["schema"]["required"] == ["name", "age"]
    assert max(map(len, lines)) < 450, "a line to paste is short"


def test_the_cause_of_a_restart_stays_on_the_screen() -> None:
    out = io.StringIO()
    screen = LiveScreen([], several=False, console=Console(file=out, force_terminal=True, width=120))
    killed = state()
    killed.phase, killed.message = LocalPhase.RESTARTING, "ended by signal 9 (SIGKILL), restart 1; next try in 1 s"
    screen.changed(killed)
    killed.phase, killed.message, killed.ready_after = Phase.READY, "", 2.0
    killed.restarts, killed.cause = 1, "ended by signal 9 (SIGKILL)"
    screen.changed(killed)
    screen.close()
    assert "rank 0: Restarting: ended by signal 9 (SIGKILL), restart 1; next try in 1 s\n" in out.getvalue()
    assert "Ready (2.0 s), restart 1: ended by signal 9 (SIGKILL)" in out.getvalue()
