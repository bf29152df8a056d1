"""`kvasir completion`: a shell that has read the script completes what there is."""

import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def script() -> str:
    command = [sys.executable, "-m", "kvasir.cli.main", "completion"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["co"], {"complete", "completion", "collect-env"}),
        (["serve", "demo://", "--max-num-s"], {"--max-num-seqs"}),
        (["bench", "thr"], {"throughput"}),
        (["bench", "serve", "--request"], {"--requests", "--request-rate"}),
        (["chat", "--max"], {"--max-tokens"}),
        (["serve", *("x" for _ in range(10)), "--max-num-s"], {"--max-num-seqs"}),
        (["nonsense", "--max"], set()),
    ],
)
def test_bash_completes_commands_and_options(script: str, words: list[str], completed: set[str]) -> None:
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=(kvasir {quoted}); COMP_CWORD={len(words)}; _kvasir; printf "%s\\n" "${{COMPREPLY[@]}}"'
    ended = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) == completed
