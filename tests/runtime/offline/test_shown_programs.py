import re
from pathlib import Path

import pytest

from kvasir.cli import serve
from kvasir.config.options import UsageError

DOCS = Path(__file__).parents[3] / "docs"
PROGRAMS = [
    block
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "offline.md").read_text(), re.DOTALL)
    if "from kvasir import" in block and "external_launcher" not in block
]
SHOWN = re.findall(
    r"^\$ (kvasir serve .*)\n(kvasir serve: .*)$", (DOCS / "moving-from-vllm.md").read_text(), re.MULTILINE
)


def test_the_pages_show_programs_and_outputs() -> None:
    assert len(PROGRAMS) >= 3
    assert len(SHOWN) >= 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_shown_program_runs(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = "kv_cache_memory_bytes='32Mi', threads=1"
    exec(compile(program.replace('LLM("demo://"', f'LLM("demo://", {small}'), "offline.md", "exec"), {})
    assert capsys.readouterr().out or "print" not in program


@pytest.mark.parametrize(("command", "line"), SHOWN)
def test_a_shown_line_is_what_serve_prints(command: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        notes = serve.parser().parse_args(command.split()[2:]).notes
    except UsageError:
        assert capsys.readouterr().err.splitlines()[0] == line
    else:
        assert [f"kvasir serve: warning: {note}" for note in notes] == [line]
