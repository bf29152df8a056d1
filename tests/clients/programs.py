"""The client programs: where each is installed, how it is installed, and how it is run.

They are installed below the user's cache, Python's in environments of their own, because they pin packages that
Kvasir uses too. `make test-clients` installs them; the tests never use the network.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

HERE: Final = Path(__file__).parent
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvasir-test-clients"
RUN_SECONDS: Final = 300
"""A program that takes longer hangs."""
API_KEY: Final = "sesame"
ENVIRONMENT: Final = {
    "PATH": os.environ["PATH"],
    "HOME": str(Path.home()),
    "PYTHONPATH": str(HERE.parent),
    # Without these, the libraries ask servers of their own.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
}
"""All that a program sees of this one's environment."""


class NotInstalledError(Exception):
    """The message names the program and the way to install it."""


class Program(Protocol):
    """A client program. `version` changes when it must be installed again."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def version(self) -> str: ...
    def installation(self) -> list[list[str]]: ...
    def command(self) -> list[str]: ...
    def example(self, code: str, folder: Path) -> list[str]:
        """The command that runs this code; files go into the folder."""
        ...


@dataclass(frozen=True)
class Python:
    name: str
    packages: str
    """With their ranges, apart by spaces."""
    source: str = "pypi.org"
    environment: str = ""
    """The name of the program whose environment it uses; "": it has one of its own."""

    @property
    def version(self) -> str:
        return self.packages

    @property
    def folder(self) -> Path:
        return CACHE / (self.environment or self.name)

    @property
    def interpreter(self) -> str:
        return str(self.folder / "bin/python")

    def installation(self) -> list[list[str]]:
        pip = [self.interpreter, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        return [[sys.executable, "-m", "venv", str(self.folder)], [*pip, *self.packages.split()]]

    def command(self) -> list[str]:
        return [self.interpreter, "-P", str(HERE / "python" / f"{self.name}_client.py")]

    def example(self, code: str, folder: Path) -> list[str]:
        return [self.interpreter, "-c", code]


@dataclass(frozen=True)
class Node:
    """A program of tests/clients/node; they share one folder of packages."""

    name: str
    source: str = "registry.npmjs.org"

    @property
    def version(self) -> str:
        return (HERE / "node/package-lock.json").read_text()

    def installation(self) -> list[list[str]]:
        self._copy("package*.json")
        return [["npm", "ci", "--no-audit", "--no-fund", "--prefix", str(CACHE / "node")]]

    def command(self) -> list[str]:
        self._copy("*.mjs")  # next to the packages: that is where Node looks for them
        return ["node", str(CACHE / "node" / f"{self.name}_client.mjs")]

    def example(self, code: str, folder: Path) -> list[str]:
        (folder / "example.mjs").write_text(code)
        (folder / "node_modules").symlink_to(CACHE / "node/node_modules")
        return ["node", str(folder / "example.mjs")]

    def _copy(self, pattern: str) -> None:
        (CACHE / "node").mkdir(parents=True, exist_ok=True)
        for file in (HERE / "node").glob(pattern):
            shutil.copy(file, CACHE / "node")


@dataclass(frozen=True)
class Java:
    name: str
    main: str
    source: str = "repo.maven.apache.org"

    @property
    def version(self) -> str:
        return (HERE / "java/pom.xml").read_text() + (HERE / f"java/src/main/java/{self.main}.java").read_text()

    def installation(self) -> list[list[str]]:
        shutil.copytree(HERE / "java", CACHE / "java", dirs_exist_ok=True)
        maven = ["mvn", "-q", "-B", "-ntp", "-f", str(CACHE / "java/pom.xml")]
        return [[*maven, "clean", "compile", "dependency:copy-dependencies"]]

    def command(self) -> list[str]:
        target = CACHE / "java/target"
        return ["java", "-cp", f"{target}/classes:{target}/dependency/*", self.main]

    def example(self, code: str, folder: Path) -> list[str]:
        (folder / "Example.java").write_text(code)
        return ["java", "-cp", f"{CACHE}/java/target/dependency/*", str(folder / "Example.java")]


OPENAI: Final = "openai>=3,<4"
LANGCHAIN: Final = "langchain-openai>=1,<2 langchain>=1,<2"
LITELLM: Final = "litellm>=1.106,<2"
ANTHROPIC: Final = "anthropic>=2.12,<3"
INSTRUCTOR_PACKAGE: Final = "instructor>=1.17,<2"
PROGRAMS: Final[tuple[Program, ...]] = (
    Python("openai", OPENAI),
    Python("langchain", LANGCHAIN),
    Python("llama_index", "llama-index-llms-openai-like>=0.8,<0.9"),
    Python("litellm", LITELLM),
    Node("openai"),
    Node("ai_sdk"),
    Java("openai", "OpenAiClient"),
)
"""Chats, streams, histories and errors."""
TOOL_PROGRAMS: Final[tuple[Program, ...]] = (
    Python("openai_tools", OPENAI, environment="openai"),
    Python("langchain_tools", LANGCHAIN, environment="langchain"),
    Python("instructor_tools", INSTRUCTOR_PACKAGE, environment="instructor"),
    Python("anthropic", ANTHROPIC),
    Python("pydantic_ai", "pydantic-ai-slim[anthropic,openai]>=2,<3"),
    Node("openai_tools"),
)
"""Structured output and tools."""
LOOP_PROGRAMS: Final[tuple[Program, ...]] = (
    Python("openai_loop", OPENAI, environment="openai"),
    Python("openai_agents_loop", "openai-agents>=0.24,<0.25", environment="openai_agents"),
    Python("anthropic_loop", ANTHROPIC, environment="anthropic"),
    Python("langchain_loop", LANGCHAIN, environment="langchain"),
    Python("litellm_loop", LITELLM, environment="litellm"),
)
"""Loops of tool calls, against a scripted engine."""
VECTOR_PROGRAMS: Final[tuple[Program, ...]] = (
    Python("openai_vectors", OPENAI, environment="openai"),
    Python("langchain_vectors", LANGCHAIN, environment="langchain"),
    Python("cohere", "cohere>=7,<8"),
)
"""Vectors and reranking."""
INSTRUCTOR: Final = Python("instructor", INSTRUCTOR_PACKAGE)
"""It runs against a scripted engine, which writes JSON into text."""
EVERY_PROGRAM: Final = (*PROGRAMS, *TOOL_PROGRAMS, *LOOP_PROGRAMS, *VECTOR_PROGRAMS, INSTRUCTOR)


def label(program: Program) -> str:
    return f"{program.name}-{type(program).__name__.lower()}"


def program_named(name: str) -> Program:
    return next(program for program in EVERY_PROGRAM if label(program) == name)


def stamp(program: Program) -> Path:
    """The file that holds the version that is installed."""
    return CACHE / f"{label(program)}.installed"


def is_installed(program: Program) -> bool:
    file = stamp(program)
    return file.exists() and file.read_text() == program.version


def command_of(program: Program, base_url: str, *replays: str) -> list[str]:
    """The command that runs it. Raises NotInstalledError."""
    if not is_installed(program):
        raise NotInstalledError(
            f"{label(program)} is not installed: run `make test-clients`, which fetches it from {program.source}"
        )
    return [*program.command(), base_url, API_KEY, *replays]


def failures_of(output: str) -> dict[str, str]:
    """Replay → error, of the replays that failed. Raises AssertionError if there was none."""
    outcomes = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert outcomes, f"no replay ran: {output}"
    return {outcome["replay"]: outcome["error"] for outcome in outcomes if outcome["error"] is not None}


def replay(program: Program, base_url: str, *replays: str) -> dict[str, str]:
    """Run it and return its failed replays, as `failures_of`. Raises NotInstalledError."""
    result = subprocess.run(
        command_of(program, base_url, *replays),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return failures_of(result.stdout)
