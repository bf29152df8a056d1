import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from kvasir.cli import main
from runtime.cli.fake_server import FakeServer, fake_server, sse, text_chunk

USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server({"/v1/completions": (200, sse(text_chunk("a"), text_chunk("b"), USAGE))}) as server:
        yield server


def bench(tmp_path: Path, *argv: str) -> dict[str, Any]:
    file = tmp_path / "figures.json"
    assert main.main(["bench", *argv, "--json", str(file)]) == 0
    figures: dict[str, Any] = json.loads(file.read_text())
    return figures


@pytest.mark.parametrize(
    ("pace", "most"), [(["--concurrency", "3"], 3), (["--request-rate", "1000"], 20), (["--warmup", "0"], 8)]
)
def test_every_request_is_sent_within_the_concurrency(
    pace: list[str], most: int, server: FakeServer, tmp_path: Path
) -> None:
    server.hold_seconds = 0.02  # more requests at a time than allowed would meet
    figures = bench(tmp_path, "serve", server.address, "--requests", "20", *pace)
    assert (figures["requests"], figures["finished"], figures["failed"]) == (20, 20, 0)
    assert figures["output_tokens"] == 40
    assert len(server.bodies) == 20 + ("--warmup" not in pace)
    assert server.most_live <= most


def test_the_table_has_a_row_per_time(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench", "serve", server.address, "--requests", "3"]) == 0
    captured = capfd.readouterr()
    first_words = [line.split()[0] for line in captured.out.splitlines()]
    assert first_words == ["requests", "tokens", "mean", "TTFT", "TPOT", "ITL", "end"]
    assert captured.err == "", "a progress bar is for terminals"


def test_the_figures_have_the_drafts_in_between(
    server: FakeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([{}, {"drafts": 4.0, "draft_tokens": 10.0, "accepted_tokens": 5.0, "0": 3.0, "1": 2.0}])

    async def read(session: object, url: str) -> dict[str, float]:
        return next(counts)

    monkeypatch.setattr("kvasir.benchmark.load_generator.read_draft_counts", read)
    figures = bench(tmp_path, "serve", server.address, "--requests", "1")["speculative_decoding"]
    assert (figures["acceptance_rate"], figures["acceptance_length"]) == (0.5, 2.25)
    assert "mean acceptance length 2.25, by position 75% 50%" in capfd.readouterr().out


def test_the_percentiles_are_those_of_vllms_option(server: FakeServer, tmp_path: Path) -> None:
    given = ["--metric-percentiles", "99.9,25", "--percentile-metrics", "ttft"]
    figures = bench(tmp_path, "serve", server.address, "--num-prompts", "3", *given)
    assert list(figures["ttft_ms"]) == ["mean", "p25", "p99.9"]


def test_a_terminal_gets_a_progress_bar(server: FakeServer) -> None:
    argv = ["-m", "kvasir.cli.main", "bench", "serve", server.address, "--requests", "3"]
    terminal = pexpect.spawn(sys.executable, argv, timeout=60, encoding="utf-8")
    terminal.expect("requests.*/3")
    terminal.expect("3 finished")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def obey_interrupts() -> None:
    """A job in the background ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_shows_what_was_measured(server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    argv = ["bench", "serve", server.address, "--requests", "5000", "--request-rate", "50", "--json", str(file)]
    terminal = pexpect.spawn(
        sys.executable,
        ["-m", "kvasir.cli.main", *argv],
        timeout=60,
        encoding="utf-8",
        preexec_fn=obey_interrupts,
    )
    terminal.expect(r"requests.* [1-9]\d*/5000")
    terminal.sendintr()
    terminal.expect("interrupted: the figures cover the requests that had ended")
    terminal.expect(r"[1-9]\d* finished, 0 hung up, 0 failed")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    figures = json.loads(file.read_text())
    assert figures["interrupted"]
    assert figures["finished"] == figures["requests"] < 5000


@pytest.mark.parametrize("file", ["none/figures.json", "."])
def test_an_unwritable_file_ends_a_benchmark_early(
    file: str, server: FakeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", "serve", server.address, "--json", str(tmp_path / file)]) == 2
    assert capfd.readouterr().err.startswith(f"kvasir bench: --json {tmp_path / file}: ")
    assert server.bodies == []


def test_a_bad_option_is_told_in_the_name_of_what_is_measured(capfd: pytest.CaptureFixture[str]) -> None:
    for argv in (["--batch-size", "0"], ["--batch-sise", "1"]):
        with pytest.raises(SystemExit):
            main.main(["bench", "latency", "demo://", *argv])
        assert capfd.readouterr().err.startswith("kvasir bench latency: ")


def test_a_key_and_a_model_are_sent(server: FakeServer, tmp_path: Path) -> None:
    bench(tmp_path, "serve", server.address, "--requests", "1", "--api-key", "k", "--model", "other")
    assert set(server.keys) == {b"Bearer k"}
    assert server.bodies[0]["model"] == "other"


def test_a_server_that_rejects_ends_a_benchmark_early(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.answers["/v1/completions"] = (400, b'{"error": {"message": "no such model"}}')
    assert main.main(["bench", "serve", server.address]) == 1
    assert "no such model" in capfd.readouterr().err
    assert len(server.bodies) == 1


def test_failed_requests_are_the_exit_code(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.answers["/v1/completions"] = (503, b"busy")
    assert main.main(["bench", "serve", server.address, "--warmup", "0", "--requests", "2"]) == 1
    captured = capfd.readouterr()
    assert "0 finished, 0 hung up, 2 failed" in captured.out
    assert captured.err == "failed: 503: busy\n"


def test_a_missing_library_is_told_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for module in ("kvasir.benchmark.timed_request", "kvasir.benchmark.load_generator"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert main.main(["bench", "serve", "127.0.0.1:9"]) == 2
    assert capfd.readouterr().err == "kvasir bench: aiohttp is not installed: pip install 'kvasir-serve[bench]'\n"


ENGINE = ("demo://", "--kv-cache-memory-bytes", "8Mi", "--threads", "1", "--input-len", "9", "--output-len", "4")


def test_throughput_runs_an_engine_without_a_server(tmp_path: Path) -> None:
    figures = bench(tmp_path, "throughput", *ENGINE, "--requests", "5")
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (45, 20)
    assert figures["steps"] >= 4
    assert figures["peak_memory_bytes"] > 2**20


def test_latency_times_batches(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    figures = bench(
        tmp_path, "latency", *ENGINE, "--batch-size", "2", "--iterations", "2", "--num-iters-warmup", "0"
    )
    assert figures["batch_ms"]["mean"] >= figures["ttft_ms"]["mean"] > 0
    output = capfd.readouterr().out
    assert "batches    2 of 2, 9 tokens in, 4 out" in output
    assert "GB/s of weights and KV cache" in output
    assert figures["decode_bytes_per_second"] > 0
    assert figures["prefill_flops"] > 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["throughput", *ENGINE, "--output-len", "999999"], "--input-len 9 and --output-len 999999 are 1000008"),
        (["latency", *ENGINE, "--batch-size", "65"], "--batch-size 65: the engine takes 64 requests"),
        (["throughput", "/no/such/model"], "/no/such/model does not exist"),
        (["startup", "/no/such/model"], "kvasir bench: /no/such/model does not exist"),
    ],
)
def test_what_cannot_be_measured_is_told_in_words(
    argv: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", *argv]) in (1, 2)
    captured = capfd.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_options_of_vllm_bench_serve_are_aliases(server: FakeServer, tmp_path: Path) -> None:
    conversations = [{"conversations": [{"from": "human", "value": f"q{number}"}]} for number in range(2)]
    (tmp_path / "sharegpt.json").write_text(json.dumps(conversations, indent=1))
    host, port = server.address.split(":")
    vllm = ["--backend", "vllm", "--host", host, "--port", port, "--endpoint", "/v1/completions"]
    data = ["--dataset-name", "sharegpt", "--dataset-path", str(tmp_path / "sharegpt.json")]
    rate = ["--num-prompts", "4", "--request-rate", "inf", "--max-concurrency", "2", "--num-warmups", "0"]
    assert main.main(["bench", "serve", *vllm, *data, *rate, "--random-output-len", "5"]) == 0
    assert sorted(body["prompt"] for body in server.bodies) == ["q0", "q0", "q1", "q1"]
    assert {body["max_tokens"] for body in server.bodies} == {5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset-name", "sharegpt"], "--dataset-name sharegpt needs a file: give --prompts FILE"),
        (["--dataset-path", "FOLDER/other.json"], "give a list of objects with conversations"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_named(
    options: list[str], message: str, server: FakeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text('[{"text": 1}]')
    words = [word.replace("FOLDER", str(tmp_path)) for word in options]
    assert main.main(["bench", "serve", server.address, *words]) == 2
    assert message in capfd.readouterr().err
