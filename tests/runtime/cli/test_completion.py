import os
import shutil
import subprocess
import sys

import pytest

from kvasir.cli.completion import SHELLS, script


@pytest.fixture(scope="module")
def bash() -> str:
    return script("bash")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["co"], {"complete", "completion", "collect-env"}),
        (["serve", "demo://", "--max-num-s"], {"--max-num-seqs"}),
        (["serve", "demo://", "--dtype", ""], {"auto", "float32", "bfloat16", "float16"}),
        (["serve", "demo://", "--dtype", "b"], {"bfloat16"}),
        (["bench", "thr"], {"throughput"}),
        (["bench", "serve", "--request"], {"--requests", "--request-rate"}),
        (["bench", "serve", "--endpoint", "ch"], {"chat"}),
        (["chat", "--max"], {"--max-tokens"}),
        (["serve", *("x" for _ in range(10)), "--max-num-s"], {"--max-num-seqs"}),
        (["completion", "z"], {"zsh"}),
        (["nonsense", "--max"], set()),
    ],
)
def test_bash_completes_commands_options_and_values(bash: str, words: list[str], completed: set[str]) -> None:
    quoted = " ".join(f"'{word}'" for word in words)
    before = words[-2] if len(words) > 1 else "kvasir"
    call = f"_shtab_kvasir kvasir '{words[-1]}' '{before}'"
    ask = f'COMP_WORDS=(kvasir {quoted}); COMP_CWORD={len(words)}; {call}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    ended = subprocess.run(["bash", "-c", f"{bash}\n{ask}"], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) == completed


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_can_read_its_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script(shell), text=True, check=True)


@pytest.mark.parametrize(
    ("argument", "variable", "shell"),
    [((), "/usr/bin/zsh", "zsh"), ((), "/bin/dash", "bash"), ((), "", "bash"), (("fish",), "/bin/bash", "fish")],
)
def test_the_script_is_for_the_users_shell(argument: tuple[str, ...], variable: str, shell: str) -> None:
    command = [sys.executable, "-m", "kvasir.cli.main", "completion", *argument]
    env = os.environ | {"SHELL": variable}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout == script(shell)
