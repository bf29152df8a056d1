"""Steps of an image build: their output, errors, and this machine's pip settings."""

import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvasir" / "images"
PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "timeout", "retries")
"""Settings that find packages. No others are passed on."""


class BuildError(Exception):
    """A build failed. The message contains the cause and the next action."""


class Log:
    """The output of a step, in a file. `result` is set when it succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result = ""


@contextmanager
def step(title: str) -> Iterator[Log]:
    """Print a line of progress with title, duration and size."""
    log = Log(CACHE / "logs" / f"{title.split(':')[0].replace(' ', '-')}.log")
    log.path.parent.mkdir(parents=True, exist_ok=True)
    log.path.write_text("")
    print(f"{title} …", end="", flush=True)
    started = time.monotonic()
    try:
        yield log
    except BaseException:
        print(" failed", flush=True)
        raise
    result = f", {log.result}" if log.result else ""
    print(f" {time.monotonic() - started:.0f} s{result}", flush=True)


def run(command: Sequence[str | Path], log: Log, env: Mapping[str, str] | None = None) -> None:
    environment = {**os.environ, **(env or {})}
    with log.path.open("a") as output:
        print("$", *command, file=output, flush=True)
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    if ended.returncode != 0:
        last = "\n".join(log.path.read_text(errors="replace").splitlines()[-15:])
        words = f"{Path(command[0]).name} failed with exit code {ended.returncode}; its output is in {log.path}"
        raise BuildError(f"{words}\n{last}")


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def scratch() -> Iterator[Path]:
    """Return a temporary directory on the cache's disk."""
    parent = CACHE / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield Path(directory)


@contextmanager
def pip_secrets() -> Iterator[list[str]]:
    """Yield options that pass pip's settings and certificates to the build; no image stores them."""
    settings = pip_settings()
    bundle = settings.pop("cert", None) or os.environ.get("SSL_CERT_FILE")
    with scratch() as directory:
        options: list[str] = []
        if bundle and Path(bundle).is_file():
            settings["cert"] = "/run/secrets/ca"
            options.append(f"--secret=id=ca,src={bundle}")
        if settings:
            config = directory / "pip.conf"
            lines = [f"{name} = {value}" for name, value in settings.items()]
            config.write_text("\n".join(["[global]", *lines, ""]))
            options.append(f"--secret=id=pip,src={config}")
        yield options


def pip_settings() -> dict[str, str]:
    """Return settings of pip's files and of its environment variables, which take precedence."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    settings: dict[str, str] = {}
    for name in PIP_SETTINGS:
        for section in ("global", "install"):
            if value := found.get(f"{section}.{name}"):
                settings[name] = str(ast.literal_eval(value)).replace("\n", " ")
        if value := os.environ.get("PIP_" + name.replace("-", "_").upper()):
            settings[name] = value
    return settings
