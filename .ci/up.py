"""Runs `make up` as its user would: waits for the URL, runs the printed curl line, presses Ctrl-C.

Nothing may be left. Standard library only: it runs before the environment is made. It prints the time to the
first answer.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

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
        command = wait_for_curl(process)
        watchdog.cancel()
        answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
        text = json.loads(answer)["choices"][0]["message"]["content"]
        print(f"--- answer after {time.monotonic() - start:.0f} s: {text}", flush=True)
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
    return 0 if text.strip() else 1


def wait_for_curl(process: "subprocess.Popen[str]") -> str:
    """The curl line that `kvasir up` prints when all is Ready; everything before it is shown."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := re.match(r"\s*(curl .*)", line):
            return match[1]
    raise SystemExit(f"make up ended with {process.wait()} before it printed a curl line")


def processes() -> list[str]:
    return subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
