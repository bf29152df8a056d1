"""`kvasir serve --headless` is `kvasir engine`, with the frontend's address as vLLM's options give it."""

import pytest

from kvasir.cli import engine, main
from kvasir.cli.headless import engine_words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            "m --headless --data-parallel-size 4 -dpl 1 -dpr 2 -dpa 10.0.0.1 -dpp 13345 --port 8000 --api-key k l",
            "m --data-parallel-size-local 1 --data-parallel-rank 2 --link tcp://10.0.0.1:13345",
        ),
        ("--headless m --data_parallel_address ::1", "m --link tcp://[::1]:5570"),
        ("m --headless --link tcp://h:1 --max-live-requests 3 --no-log-requests", "m --link tcp://h:1"),
        (
            "m -tp 2 --nnodes 2 --node-rank 1 --master-addr h --headless",
            "m -tp 2 --nnodes 2 --node-rank 1 --master-addr h",
        ),
        (
            "m --headless --link tcp://h:1 -ep -dp 2 -dpa h",
            "m --link tcp://h:1 -ep -dp 2 --data-parallel-address h",
        ),
    ],
)
def test_options_of_the_head_become_those_of_an_engine(given: str, words: str) -> None:
    found = engine_words(given.split())
    assert sorted(found) == sorted(words.replace("-ep", "--enable-expert-parallel").split())
    engine.parser().parse_args(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("m --headless", "which needs the address of its frontend: give --link tcp://HOST:5570"),
        ("m --headless --enable-prefix-caching=1 --link l", "--enable-prefix-caching takes no value, and got '1'"),
        ("m --headless -dpl 2 -dpa h", "start it 2 times, each time with its own --data-parallel-rank"),
    ],
)
def test_what_leaves_something_open_is_an_error_with_the_way(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["serve", *given.split()]) == 2
    assert message in capsys.readouterr().err
