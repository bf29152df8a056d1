"""Runs `make up` as its user would: waits for the URL, runs the printed curl lines, presses Ctrl-C.

Nothing may be left. Standard library only: it runs before the environment is made.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

DEADLINE = 30 * 60
"""Seconds until the URL is printed: a first run downloads torch."""


def main() -> int:
    start = time.monotonic()
    process = subprocess.Popen(
        ["make", "up"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    watchdog = threading.Timer(DEADLINE, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        commands = wait_for_curl(process)
        watchdog.cancel()
        first = answer_to(commands[0])["content"]
        print(f"--- answer after {time.monotonic() - start:.0f} s: {first}", flush=True)
        wrong = wrong_answers(first, *map(answer_to, commands[1:]))
    finally:
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        print(process.communicate(timeout=90)[0], end="", flush=True)
    left = [line for line in processes() if os.path.abspath(".venv") in line]
    if left:
        print("left behind after Ctrl-C:", *left, sep="\n", file=sys.stderr)
        return 1
    print(f"--- Ctrl-C: make ended with {process.returncode}, no process is left", flush=True)
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def wait_for_curl(process: "subprocess.Popen[str]") -> list[str]:
    """Return the curl lines that `kvasir up` prints when all is Ready."""
    assert process.stdout is not None
    commands: list[str] = []
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := re.match(r"\s*(curl .*)", line):
            commands.append(match[1])
        elif commands:
            return commands
    raise SystemExit(f"make up ended with {process.wait()} before it printed what follows the curl lines")


def answer_to(command: str) -> dict[str, Any]:
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
    print(f"--- {answer}", flush=True)
    message: dict[str, Any] = json.loads(answer)["choices"][0]["message"]
    return message


def wrong_answers(text: str, tool: dict[str, Any], form: dict[str, Any]) -> list[str]:
    """Return a line for each wrong answer: to the question, with a tool, with a JSON schema."""
    wrong = [] if text.strip() else ["the question has an empty answer"]
    called = [call["function"] for call in tool.get("tool_calls") or []]
    if [(call["name"], json.loads(call["arguments"])) for call in called] != [("get_weather", {"city": "Paris"})]:
        wrong.append(f"the tool is not called with Paris: {tool}")
    if json.loads(form["content"]) != {"name": "Ada", "age": 36}:
        wrong.append(f"the person is not found: {form}")
    return wrong


def processes() -> list[str]:
    return subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
