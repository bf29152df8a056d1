"""Run services on this machine until Ctrl-C, and print how to use them."""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kvasir.config.options import ConfigError
from kvasir.hub.pooling.pooling_info import CLASSIFY, EMBED
from kvasir.local.check_model import CHAT
from kvasir.local.place import Place
from kvasir.local.supervision.process_spec import ProcessSpec
from kvasir.local.supervision.screen import LastingScreen, PlainScreen, make_screen
from kvasir.local.supervision.supervisor import Supervisor

# In the log directory while the service runs: probe ports for `file_sd_configs` of Prometheus.
TARGETS: Final = "prometheus-targets.json"


@dataclass(frozen=True)
class LocalService:
    place: Place
    processes: Sequence[ProcessSpec]
    served_name: str
    use: str  # what `check_model` returns
    needs_key: bool
    https: bool = False
    # The demo model with its own template was taught the questions of the further lines.
    is_demo: bool = False

    @property
    def url(self) -> str:
        url = self.place.url
        return "https" + url.removeprefix("http") if self.https else url


def run_services(services: Sequence[LocalService]) -> None:
    """Return after Ctrl-C, when every process has ended. Raises ConfigError if one rejects its settings."""

    def stop_listening() -> None:
        for service in services:
            service.place.stop_listening()

    screen = make_screen([line for service in services for line in welcome(service)], several=len(services) > 1)
    targets = [service.place.logs / TARGETS for service in services]
    try:
        for service, path in zip(services, targets, strict=True):
            write_targets(service, path)
        supervisor = Supervisor(
            [spec for service in services for spec in service.processes],
            logs={service.place.service: service.place.logs for service in services},
            screen=screen,
            ending=stop_listening,
        )
        for service in services:
            screen.note(f"Logs of {service.place.service}: {service.place.logs}")
        asyncio.run(supervisor.run())
    finally:
        screen.close()
        for path in targets:
            path.unlink(missing_ok=True)


def write_targets(service: LocalService, path: Path) -> None:
    # The probe ports differ from start to start.
    groups = [
        {
            "targets": [urlsplit(spec.status_url).netloc],
            "labels": {"service": service.place.service, "process": spec.name},
        }
        for spec in service.processes
    ]
    try:
        path.write_text(json.dumps(groups, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; set XDG_STATE_HOME") from error


def welcome(service: LocalService) -> list[str]:
    url = service.url
    where = f"{url}/v1" if service.place.socket_file is None else f"the socket {service.place.socket_file}"
    lines = ["", f"{service.served_name} is served at {where}", "", *(f"  {line}" for line in curl_lines(service))]
    if service.use == CHAT and service.place.socket_file is None:
        lines.append(f"  {program()} chat {url}")
    if service.needs_key:
        lines += ["", "They send the key in KVASIR_API_KEY, one of those that the service accepts."]
    return [*lines, "", f"Ctrl-C ends it. Its logs: {program()} logs -f {service.place.logs.name}"]


def program(path: str | None = None) -> str:
    """Return how a shell starts the running `kvasir`: by its name if that is found, else by its path."""
    running = Path(path or sys.argv[0])
    found = shutil.which("kvasir")
    if found is not None and Path(found).resolve() == running.resolve():
        return "kvasir"
    if running.name == "kvasir" and os.access(running, os.X_OK):
        return shlex.quote(str(running))
    return f"{shlex.quote(sys.executable)} -m kvasir.cli.main"


def curl_lines(service: LocalService) -> list[str]:
    """Return commands for a question; for the demo model also for a tool call and an answer in JSON."""
    if service.use == EMBED:
        return [_curl(service, "embeddings", {"input": ["Kvasir is a wise man", "A god"]})]
    if service.use == CLASSIFY:
        return [_curl(service, "score", {"text_1": "Who is Kvasir?", "text_2": ["A wise man", "A river"]})]
    if service.use != CHAT:
        return [_curl(service, "completions", {"prompt": "Kvasir is"})]
    bodies: list[dict[str, object]] = [{"messages": _asked("What is Kvasir?")}]
    if service.is_demo:
        city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": city}}
        question = _asked("What is the weather in Paris?")
        bodies.append({"messages": question, "tools": [tool], "temperature": 0})
        properties = {"name": {"type": "string"}, "age": {"type": "integer"}}
        person = {"type": "object", "properties": properties, "required": [*properties]}
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": person}}
        text = _asked("Extract: Ada is 36 years old.")
        bodies.append({"messages": text, "response_format": form, "temperature": 0})
    return [_curl(service, "chat/completions", body) for body in bodies]


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _curl(service: LocalService, path: str, fields: dict[str, object]) -> str:
    body = json.dumps({"model": service.served_name, **fields}, ensure_ascii=False)
    headers = "-H 'Content-Type: application/json'"
    if service.needs_key:
        headers += ' -H "Authorization: Bearer $KVASIR_API_KEY"'
    socket = service.place.socket_file
    curl = "curl" if socket is None else f"curl --unix-socket {shlex.quote(socket)}"
    return f"{curl} {service.url}/v1/{path} {headers} -d {shlex.quote(body)}"


# Gets the base URL.
Job = Callable[[str], Awaitable[None]]


def run_job(service: LocalService, job: Job) -> None:
    """Return when the job has returned and every process has ended.

    Ctrl-C and SIGTERM cancel the job and raise KeyboardInterrupt. Raises the job's errors, and ConfigError if a
    process rejects its settings. Other processes that end are restarted.
    """
    asyncio.run(_run(service, job))


async def _run(service: LocalService, job: Job) -> None:
    screen = _JobScreen()
    working = asyncio.create_task(_work(service, job, screen))

    def ending() -> None:
        service.place.stop_listening()
        working.cancel()

    supervisor = Supervisor(
        service.processes, logs={service.place.service: service.place.logs}, screen=screen, ending=ending
    )
    screen.note(f"Logs of {service.place.service}: {service.place.logs}")
    supervising = asyncio.create_task(supervisor.run())
    await asyncio.wait({working, supervising}, return_when=asyncio.FIRST_COMPLETED)
    if not supervising.done() and not working.cancelled():
        supervisor.end()
    await supervising
    try:
        await working
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _work(service: LocalService, job: Job, screen: "_JobScreen") -> None:
    await screen.ready.wait()
    await job(service.place.url)


class _JobScreen(LastingScreen):
    """Prints phases as lines, without a welcome."""

    def __init__(self) -> None:
        super().__init__(PlainScreen([], several=False))
        # every process was ready once
        self.ready = asyncio.Event()

    def serving(self) -> None:
        self.ready.set()
