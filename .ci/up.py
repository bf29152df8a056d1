"""Runs `make up` as its user would: waits for the URL, runs the printed curl line, presses Ctrl-C.

Nothing may be left. Standard library only: it runs before the environment is made. It prints the time to the
first answer.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

DEADLINE = 30 * 60
"""Seconds for everything: a first run downloads torch."""


def main() -> int:
    start = time.monotonic()
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        ["make", "up"], stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    try:
        command = wait_for_curl(leader, process, start + DEADLINE)
        print(f"\n--- {command}", flush=True)
        answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
        text = json.loads(answer)["choices"][0]["message"]["content"]
        print(f"--- answer after {time.monotonic() - start:.0f} s: {text}", flush=True)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        drain(leader)
        code = process.wait(timeout=90)
    left = [line for line in processes() if ".venv/bin/kvasir" in line or "kvasir.cli" in line]
    if left:
        print("left behind after Ctrl-C:", *left, sep="\n", file=sys.stderr)
        return 1
    print(f"--- Ctrl-C: make ended with {code}, no process is left", flush=True)
    return 0 if text.strip() else 1


def wait_for_curl(terminal: int, process: subprocess.Popen[bytes], deadline: float) -> str:
    """The curl line that `kvasir up` prints when all is Ready, joined where the shell would join it."""
    seen = ""
    while time.monotonic() < deadline:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        seen += piece.decode(errors="replace")
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "")
        if match := re.search(r"^\s*(curl (?:[^\n]*\\\n)*[^\n]*)\n", plain, re.MULTILINE):
            return match[1]
    raise SystemExit(f"make up ended with {process.poll()} before it printed a curl line")


def drain(terminal: int) -> None:
    """Show what is still printed, until the other side is closed."""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            return
        if not piece:
            return
        sys.stdout.buffer.write(piece)
        sys.stdout.flush()


def processes() -> list[str]:
    return subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
