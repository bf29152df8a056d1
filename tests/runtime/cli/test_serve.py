import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.cli import engine as engine_command
from kvasir.cli import frontend as frontend_command
from kvasir.cli import main, serve
from kvasir.config.options import ConfigError
from kvasir.hub.source import fetch
from kvasir.local.place import Place, open_place
from kvasir.local.run import LocalService, welcome
from kvasir.local.supervision.process_spec import ProcessSpec


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("KVASIR_", "VLLM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def place() -> Iterator[Place]:
    opened = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=2)
    yield opened
    opened.close()


def specs_of(place: Place, *argv: str) -> list[ProcessSpec]:
    return serve.processes_of(serve.settings_of(serve.parser().parse_args(argv)), place)


def args_of(spec: ProcessSpec) -> list[str]:
    """The arguments after `kvasir engine` or `kvasir frontend`."""
    return list(spec.argv[spec.argv.index("kvasir.cli.main") + 2 :])


def test_there_is_a_frontend_and_an_engine_per_rank(place: Place) -> None:
    specs = specs_of(place, "demo://", "--data-parallel-size", "2")
    assert [spec.name for spec in specs] == ["frontend-0", "engine-0", "engine-1"]
    assert [spec.env.get("KVASIR_DATA_PARALLEL_RANK") for spec in specs] == [None, "0", "1"]


def test_frontends_share_a_socket_and_have_own_links(tmp_path: Path) -> None:
    place = open_place("demo", host="127.0.0.1", port=0, frontends=2, engines=1)
    try:
        specs = specs_of(place, "demo://", "--api-server-count", "2")
        assert [spec.name for spec in specs] == ["frontend-0", "frontend-1", "engine-0"]
        first, second, engine = (spec.env for spec in specs)
        assert first["KVASIR_FD"] == second["KVASIR_FD"] == str(place.listener.fileno())
        assert engine["KVASIR_LINK"] == f"{first['KVASIR_LINK']},{second['KVASIR_LINK']}"
    finally:
        place.close()


def test_a_unix_socket_is_inherited_and_shown() -> None:
    with tempfile.TemporaryDirectory(prefix="kvs-", dir="/tmp") as folder:
        place = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1, uds=f"{folder}/http")
        try:
            frontend_spec, _ = specs_of(place, "demo://", "--uds", f"{folder}/http")
            assert "--uds" not in args_of(frontend_spec)
            lines = welcome(LocalService(place, [frontend_spec], "demo", use="chat", needs_key=False))
        finally:
            place.close()
    assert f"demo is served at the socket {folder}/http" in lines
    assert any(f"curl --unix-socket {folder}/http http://localhost/v1/chat" in line for line in lines)
    assert not any(" chat http" in line for line in lines)


def test_https_reaches_the_frontend_and_the_printed_lines(place: Place) -> None:
    (frontend_spec, _) = specs_of(place, "demo://", "--ssl-certfile", "a.pem", "--ssl-keyfile", "b.pem")
    config = frontend_command.config_of(
        frontend_command.parser().parse_args([*args_of(frontend_spec), "--link", "ipc:///x"])
    )
    assert (config.tls.ssl_certfile, config.tls.ssl_keyfile) == ("a.pem", "b.pem")
    service = LocalService(place, [frontend_spec], "demo", use="chat", needs_key=False, https=True)
    assert any(f"curl https://127.0.0.1:{place.listener.getsockname()[1]}/v1" in line for line in welcome(service))


def test_every_option_reaches_the_process_it_is_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "--served-model-name": "a",
        "--max-model-len": "100",
        "--max-num-seqs": "7",
        "--dtype": "float32",
        "--kv-cache-memory-bytes": "1Mi",
        "--drain-timeout": "1m",
        "--max-live-requests": "9",
        "--max-live-tokens": "2000",
        "--max-queued-tokens": "1000",
        "--block-size": "8",
        "--threads": "1",
        "--heartbeat-timeout": "3s",
        "--log-level": "debug",
        "--log-format": "json",
        "--slow-step": "5s",
        "--distributed-executor-backend": "mp",
        "--worker-timeout": "40s",
    }
    frontend_spec, engine_spec = specs_of(place, "demo://", *(word for pair in options.items() for word in pair))
    for spec in (frontend_spec, engine_spec):
        for name, value in spec.env.items():
            if name.startswith("KVASIR_"):
                monkeypatch.setenv(name, value)
        if spec is engine_spec:
            engine = engine_command.config_of(engine_command.parser().parse_args(args_of(spec)))
        else:
            frontend = frontend_command.config_of(frontend_command.parser().parse_args(args_of(spec)))
    assert frontend.model == engine.model
    assert engine.model.served_model_name == ("a",)
    assert engine.model.max_model_len == 100
    assert (engine.scheduler.max_num_seqs, engine.cache.block_size, engine.device.threads) == (7, 8, 1)
    assert engine.cache.kv_cache_memory_bytes == 2**20
    assert (frontend.server.max_live_requests, frontend.server.max_live_tokens) == (9, 2000)
    assert frontend.server.fd == place.listener.fileno()
    assert (frontend.process.drain_timeout, engine.process.drain_timeout) == (60, 60)
    assert (frontend.link.heartbeat_timeout, engine.link.heartbeat_timeout) == (3, 3)
    assert frontend.link.link == engine.link.link == place.links
    assert (frontend.process.log_format, engine.process.log_format) == ("json", "json")
    assert engine.trace.slow_step == 5
    assert (engine.executor.distributed_executor_backend, engine.executor.worker_timeout) == ("mp", 40)
    assert engine.scheduler.max_queued_tokens == 1000
    assert engine.ops.ops_port == place.engine_ops_ports[0]


def test_options_come_from_the_environment_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_MAX_NUM_SEQS", "5")
    _, engine_spec = specs_of(place, "demo://")
    assert args_of(engine_spec) == ["demo://", "--max-num-seqs", "5"]
    assert "KVASIR_MAX_NUM_SEQS" not in engine_spec.env


def test_keys_are_not_seen_in_the_processes_arguments(place: Place) -> None:
    keys = ("--api-key", "one", "two", "--admin-api-key", "three")
    frontend, engine = specs_of(place, "demo://", *keys)
    assert not {"one", "two", "three"} & {*frontend.argv, *engine.argv}
    assert frontend.env["KVASIR_API_KEY"] == "one,two"
    assert frontend.env["KVASIR_ADMIN_API_KEY"] == "three"
    assert not {"KVASIR_API_KEY", "KVASIR_ADMIN_API_KEY"} & set(engine.env)


def test_the_key_of_vllm_is_the_frontends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "one")
    frontend, engine = specs_of(place, "demo://")
    assert frontend.env["KVASIR_API_KEY"] == "one"
    assert not {"VLLM_API_KEY", "KVASIR_API_KEY"} & engine.env.keys()
    assert "VLLM_API_KEY" not in frontend.env


@pytest.mark.parametrize(
    ("tensor", "pipeline"), [("--tensor-parallel-size", "--pipeline-parallel-size"), ("-tp", "-pp")]
)
def test_engines_get_the_sizes_of_a_split(place: Place, tensor: str, pipeline: str) -> None:
    frontend, engine = specs_of(place, "demo://", tensor, "2", pipeline, "3", "--enable-expert-parallel")
    assert engine.argv[engine.argv.index("--tensor-parallel-size") + 1] == "2"
    assert engine.argv[engine.argv.index("--pipeline-parallel-size") + 1] == "3"
    assert "--enable-expert-parallel" in engine.argv
    assert not {"--tensor-parallel-size", "--pipeline-parallel-size"} & set(frontend.argv)


def test_engines_that_share_experts_get_their_number_and_a_port(place: Place) -> None:
    frontend, *engines = specs_of(place, "demo://", "--data-parallel-size", "2", "--enable-expert-parallel")
    for engine in engines:
        assert engine.argv[engine.argv.index("--data-parallel-size") + 1] == "2"
        assert engine.argv[engine.argv.index("--data-parallel-rpc-port") + 1] == str(place.meeting_port)
    assert len({place.meeting_port, *place.engine_ops_ports, *place.frontend_ops_ports}) == 4
    assert "--data-parallel-size" not in frontend.argv


def test_independent_engines_get_no_number(place: Place) -> None:
    for spec in specs_of(place, "demo://", "--data-parallel-size", "2"):
        assert "--data-parallel-size" not in spec.argv


@pytest.mark.parametrize("flag", ["--api-key", "--admin-api-key"])
def test_a_key_with_a_comma_is_refused(place: Place, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag}: a key must not contain a comma.* see {flag}-dir"):
        specs_of(place, "demo://", flag, "a,b")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["demo://", "--max-num-seq", "3"], "unrecognized arguments: --max-num-seq 3"),
        (
            ["demo://", "--quantization", "awq"],
            "--quantization awq: the weights of this checkpoint are not quantised",
        ),
        (
            ["demo://", "-tp", "2", "--distributed-executor-backend", "uni"],
            "--distributed-executor-backend uni has one worker, and --tensor-parallel-size 2 needs 2",
        ),
        (
            ["demo://", "-tp", "2", "-pp", "2", "--distributed-executor-backend", "uni"],
            "and --tensor-parallel-size 2 × --pipeline-parallel-size 2 needs 4: choose mp, or leave it out",
        ),
        (["demo://", "-pp", "0"], "argument -pp/--pipeline-parallel-size: 0 is out of range"),
        (
            ["demo://", "-pp", "2", "--enable-expert-parallel"],
            "has no effect with one worker in each stage: give --tensor-parallel-size 2",
        ),
        (["demo://", "--enable-expert-parallel"], "has no effect with one worker: give --tensor-parallel-size 2"),
        (["--api-key", "k", "demo://"], "--api-key takes several values and took demo:// too"),
        (["demo://", "--api-key", ""], "--api-key: a key is empty; check the variable that it comes from"),
        (
            ["demo://", "--api-key-dir", ""],
            "--api-key-dir: the directory's name is empty; check the variable",
        ),
        (
            ["demo://", "--max-model-len", "9999"],
            "--max-model-len 9999 is more than the model's own 2048 positions",
        ),
        (["demo://", "--link", "ipc:///x"], "unrecognized arguments: --link"),
        (["demo://", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["demo://", "--data-parallel-size", "0"], "0 is out of range"),
        (["demo://", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"], "is below --max-num-seqs"),
        ([], "the following arguments are required: MODEL"),
        (["/no/such/model"], "/no/such/model does not exist"),
        (["demo://", "--device", "cuda"], "there is no GPU here, and 1 engine needs one: choose --device cpu"),
        (
            ["demo://", "--device", "cuda", "-tp", "2", "--data-parallel-size", "2"],
            "there is no GPU here, and 4 workers need one each: choose --device cpu, or a smaller --tensor",
        ),
    ],
)
def test_mistakes_are_told_in_a_line_before_anything_is_started(
    argv: list[str], message: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(serve, "run_services", lambda services: pytest.fail("it was started"))
    try:
        code = main.main(["serve", *argv])
    except SystemExit as end:  # argparse's way
        code = int(str(end.code))
    captured = capfd.readouterr()
    assert code == 2
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a model, for a test to break; nothing may be started with it."""
    monkeypatch.setattr(serve, "run_services", lambda services: pytest.fail("it was started"))
    return Path(shutil.copytree(fetch("demo://", weights=False), tmp_path / "model"))


def test_missing_weights_are_reported_before_a_start(broken: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for file in broken.glob("*.safetensors"):
        file.unlink()
    assert main.main(["serve", str(broken)]) == 2
    assert capfd.readouterr().err.startswith(f"kvasir serve: {broken} holds no weights")


def test_a_quantised_model_is_told_before_anything_is_started(
    broken: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "hqq"}}))
    assert main.main(["serve", str(broken)]) == 2
    assert "quantization_config: quant_method is 'hqq', and the supported ones are " in capfd.readouterr().err


def test_a_misspelt_variable_is_a_warning(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "run_services", lambda services: None)
    monkeypatch.setenv("KVASIR_MAX_NUM_SEQ", "3")
    assert main.main(["serve", "demo://", "--device", "cpu", "--port", "0"]) == 0
    assert capfd.readouterr().err == (
        "kvasir serve: warning: KVASIR_MAX_NUM_SEQ is not a setting of Kvasir and has no effect "
        "(did you mean KVASIR_MAX_NUM_SEQS?)\n"
    )


def test_a_port_in_use_is_told(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    port = str(place.listener.getsockname()[1])
    assert main.main(["serve", "demo://", "--device", "cpu", "--port", port]) == 2
    assert f"--port {port} is in use on 127.0.0.1: choose another one" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("source", "name"),
    [("demo://", "demo"), ("hf://org/Name-1@main", "Name-1"), ("/a/b/", "b"), ("org/x y", "x-y"), ("..", "model")],
)
def test_logs_are_named_after_the_model(source: str, name: str) -> None:
    assert serve.name_of(source) == name
