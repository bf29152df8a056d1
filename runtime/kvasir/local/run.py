"""Runs services on this machine until Ctrl-C and prints how to use them; shared by `up` and `serve`."""

import asyncio
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.local.place import Place
from kvasir.local.supervision.process_spec import ProcessSpec
from kvasir.local.supervision.screen import make_screen
from kvasir.local.supervision.supervisor import Supervisor


@dataclass(frozen=True)
class LocalService:
    """A service that is about to run here."""

    place: Place
    processes: Sequence[ProcessSpec]
    served_name: str
    chats: bool
    """The model has a chat template."""
    needs_key: bool


def run_services(services: Sequence[LocalService]) -> None:
    """Return after Ctrl-C, once every process has ended. Raises ConfigError if one refused its settings."""

    def stop_listening() -> None:
        for service in services:
            service.place.stop_listening()

    screen = make_screen([line for service in services for line in welcome(service)], several=len(services) > 1)
    try:
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


def welcome(service: LocalService) -> list[str]:
    """What to do with the service, in lines that work as they are."""
    url = service.place.url
    lines = ["", f"{service.served_name} is served at {url}/v1", "", f"  {curl_line(service)}"]
    if service.chats:
        lines.append(f"  kvasir chat {url}")
    if service.needs_key:
        lines += ["", "Both send the key in KVASIR_API_KEY, one of those that the service accepts."]
    return [*lines, "", "Ctrl-C ends it."]


def curl_line(service: LocalService) -> str:
    body: dict[str, object] = {"model": service.served_name}
    if service.chats:
        path = "chat/completions"
        body["messages"] = [{"role": "user", "content": "What is Kvasir?"}]
    else:
        path = "completions"
        body["prompt"] = "Kvasir is"
    headers = "-H 'Content-Type: application/json'"
    if service.needs_key:
        headers += ' -H "Authorization: Bearer $KVASIR_API_KEY"'
    return f"curl {service.place.url}/v1/{path} {headers} -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
