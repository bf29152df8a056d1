import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from kvasir import LLM, SamplingParams
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import find_failure
from runtime.executor.nodes.node_pair import address_for_others, free_port
from runtime.executor.processes import children_of, seconds_until_gone
from runtime.link.written_keys import write_link_keys
from service.running import START_TIMEOUT, spawn

PROMPT = "Kvasir is"
MAX_TOKENS = 300
MAX_SECONDS = 20.0
Process = subprocess.Popen[str]


class NodesService:
    """A frontend, and an engine with two nodes at the address of this machine if it has one."""

    def __init__(self, folder: Path) -> None:
        write_link_keys(folder / "frontend", folder / "engine")
        self._folder = folder
        self._link = f"tcp://127.0.0.1:{free_port()}"
        self._master = (address_for_others() or "127.0.0.1", str(free_port()))
        self._processes: list[Process] = []
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        keys = ("--link-keys", str(folder / "frontend"))
        self._spawn("frontend", "demo://", "--link", self._link, *keys, "--port", str(port))

    def start_engine(self) -> tuple[Process, Process]:
        """Return its leader and its member."""
        address, port = self._master
        common = (
            *("engine", "demo://", "--device", "cpu", "--dtype", "float32", "--kv-cache-memory-bytes", "64Mi"),
            *("--link", self._link, "--link-keys", str(self._folder / "engine"), "-tp", "2", "--nnodes", "2"),
            *("--master-addr", address, "--master-port", port, "--ops-port", "0"),
        )
        return self._spawn(*common), self._spawn(*common, "--node-rank", "1")

    def wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        fields = {"prompt": PROMPT, "max_tokens": 1}
        while True:
            try:
                if httpx.post(f"{self.url}/v1/completions", json=fields, timeout=START_TIMEOUT).is_success:
                    return
            except httpx.TransportError:
                pass  # the frontend does not listen yet
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def _spawn(self, *command: str) -> Process:
        process = spawn(command)
        self._processes.append(process)
        return process


@contextmanager
def service(folder: Path) -> Iterator[NodesService]:
    result = NodesService(folder)
    try:
        yield result
    finally:
        result.close()


def expected_text() -> str:
    with LLM("demo://", dtype="float32", kv_cache_memory_bytes="64Mi") as llm:
        params = SamplingParams(temperature=1.0, seed=4, max_tokens=MAX_TOKENS, ignore_eos=True)
        [output] = llm.generate([PROMPT], params)
        return output.outputs[0].text


def text_of(line: str) -> str:
    event = line.removeprefix("data: ")
    return json.loads(event)["choices"][0]["text"] if event.startswith("{") else ""


def test_an_answer_goes_on_after_the_death_of_a_node(tmp_path: Path) -> None:
    expected = expected_text()
    fields = {"prompt": PROMPT, "temperature": 1.0, "seed": 4, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    with service(tmp_path) as running:
        completions = f"{running.url}/v1/completions"
        leader, member = running.start_engine()
        running.wait_until_it_serves()
        workers = [*children_of(leader.pid), *children_of(member.pid)]
        assert len(workers) == 2
        with httpx.stream("POST", completions, json={**fields, "stream": True}, timeout=START_TIMEOUT) as answer:
            lines = answer.iter_lines()
            begun = text_of(next(lines))  # a step may run now
            member.send_signal(signal.SIGKILL)
            log, _ = leader.communicate(timeout=START_TIMEOUT)
            assert leader.returncode == ExitCode.FAILED
            failure = find_failure(log)
            assert failure is not None
            assert failure.message.startswith("node 1 (")
            assert failure.message.endswith(" is lost: its connection broke")  # not the error of the other worker
            seconds_until_gone(workers, MAX_SECONDS)
            running.start_engine()
            assert begun + "".join(map(text_of, lines)) == expected
