"""bench/host_step.py: a smoke test, because it replaces parts of the engine by name."""

import importlib.util
import sys

import pytest

from bench_process import run_bench

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="builds of torch without CUDA have no triton"
)


def test_steps_of_each_number_of_requests_are_timed() -> None:
    done = run_bench("bench.host_step", "--requests", "1,3", "--steps", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [int(number) for number, _, _ in table] == [1, 3]
    assert all(int(median) > 0 for _, median, _ in table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "5000"), "argument --steps: '5000': give a number from 2 to 1932"),
        (("--requests", "1,none"), "argument --requests: '1,none': give numbers above 0"),
    ],
)
def test_wrong_numbers_are_refused(
    options: tuple[str, str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench import host_step

    monkeypatch.setattr(sys, "argv", ["host_step", *options])
    with pytest.raises(SystemExit, match="2"):
        host_step.main()
    assert message in capsys.readouterr().err
