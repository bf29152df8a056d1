"""A stand-in for an engine or a frontend, run as a script: `fake_process.py PORT BEHAVIOUR …`.

Behaviours: serve, loading (Loading, then Warming, then Ready, one per look), exit CODE, fail CODE (with a failure
as its last line), failed (reports Failed once, then Ready), refused (reports LinkRefused once, then no problem),
sick (liveness answers 503), deaf (ignores SIGTERM), breeds (has a child of its own).
"""

import json
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

LOADING: list[dict[str, object]] = [
    {"phase": "Loading", "progress": {"done": 5, "total": 10}, "message": ""},
    {"phase": "Warming", "progress": None, "message": ""},
]
FAILED: dict[str, object] = {"phase": "Failed", "progress": None, "message": "out of memory"}
REFUSED: dict[str, object] = {"phase": "Ready", "message": "another model", "reason": "LinkRefused"}
READY = {"phase": "Ready", "progress": None, "message": ""}


class Handler(BaseHTTPRequestHandler):
    behaviour = "serve"
    phases: list[dict[str, object]]

    def do_GET(self) -> None:
        sick = self.behaviour == "sick" and self.path == "/health/live"
        body = b"stuck"
        if self.path == "/status":
            body = json.dumps(self.phases.pop(0) if self.phases else READY).encode()
        self.send_response(503 if sick else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def end(*_: object) -> None:
    print("asked to end", flush=True)
    sys.exit(0)


def main() -> None:
    port, behaviour, *rest = sys.argv[1:]
    print(f"this is {behaviour}", flush=True)
    if behaviour == "fail":
        print('{"reason": "InvalidSpec", "message": "the reason why"}', file=sys.stderr)
        sys.exit(int(rest[0]))
    if behaviour == "exit":
        print("the reason why", file=sys.stderr)
        sys.exit(int(rest[0]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else end)
    if behaviour == "breeds":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    Handler.behaviour = behaviour
    phases: dict[str, list[dict[str, object]]] = {
        "loading": list(LOADING),
        "failed": [FAILED],
        "refused": [REFUSED],
    }
    Handler.phases = phases.get(behaviour, [])
    HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
