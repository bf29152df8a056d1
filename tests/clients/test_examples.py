"""The examples of docs/clients.md run as they are printed, but for the address and the key."""

import re
import subprocess
from pathlib import Path

import pytest

from clients.programs import API_KEY, ENVIRONMENT, RUN_SECONDS, is_installed, label, program_named
from service.running import ROOT, Service

BLOCK = re.compile(r"^## ([^\n]+)\n\n```(?:python|js|java)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLES = dict(BLOCK.findall((ROOT / "docs/clients.md").read_text()))
PROGRAMS_BY_HEADING = {
    "openai-python": program_named("openai-python"),
    "openai-node": program_named("openai-node"),
    "openai-java": program_named("openai-java"),
    "AI SDK of Vercel": program_named("ai_sdk-node"),
    "LangChain": program_named("langchain-python"),
    "LlamaIndex": program_named("llama_index-python"),
    "litellm": program_named("litellm-python"),
    "Structured output": program_named("openai_tools-python"),
    "Tools": program_named("openai_tools-node"),
    "LangChain agents": program_named("langchain_tools-python"),
    "pydantic-ai": program_named("pydantic_ai-python"),
    "instructor": program_named("instructor_tools-python"),
    "Libraries of Anthropic": program_named("anthropic-python"),
}


def test_every_library_has_an_example() -> None:
    assert EXAMPLES.keys() == PROGRAMS_BY_HEADING.keys()


@pytest.mark.parametrize("heading", PROGRAMS_BY_HEADING)
def test_example_of(heading: str, service: Service, tmp_path: Path) -> None:
    program = PROGRAMS_BY_HEADING[heading]
    if not is_installed(program):
        pytest.skip(f"{label(program)} is not installed: run `make test-clients`")
    code = EXAMPLES[heading]
    for printed, real in (("http://localhost:8000", service.url), ('"none"', f'"{API_KEY}"')):
        assert printed in code
        code = code.replace(printed, real)
    command = program.example(code, tmp_path)
    result = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()
