"""A stand-in of the hub in a pod: the demo model as hf://org/demo on port 8000, and on 8001 the bytes it has sent.

It is the hub of the unit tests, with other addresses. Their files are in the same directory of the pod.
"""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files

from runtime.hub.fake_hub import FakeHub


def main() -> None:
    hub = FakeHub()
    hub.socket.close()
    hub.socket = socket.create_server(("", 8000))
    demo = files("kvasir.hub") / "demo"
    hub.models["org/demo"] = {file.name: file.read_bytes() for file in demo.iterdir() if file.is_file()}

    class Counts(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(hub.sent).encode())

    threading.Thread(target=ThreadingHTTPServer(("", 8001), Counts).serve_forever, daemon=True).start()
    hub.serve_forever()


if __name__ == "__main__":
    main()
