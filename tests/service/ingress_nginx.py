"""A real nginx on loopback that serves an Ingress as ingress-nginx does: Debian's package, in the user's cache."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from debian import unpacked

_PREFIX: Final = "nginx.ingress.kubernetes.io/"
# of the location
_DIRECTIVES: Final = {
    "proxy-body-size": "client_max_body_size {};",
    "proxy-buffering": "proxy_buffering {};",
    "proxy-read-timeout": "proxy_read_timeout {}s;",
    "proxy-send-timeout": "proxy_send_timeout {}s;",
}
_CONFIG: Final = """\
daemon off; pid {folder}/pid; error_log stderr; user root root;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  proxy_http_version 1.1;
  # of the controller, and shorter than its 60 s
  proxy_read_timeout 1s; client_max_body_size 1m; proxy_buffering on;
  server {{
    listen 127.0.0.1:{port};
    location {path} {{ proxy_pass {upstream}; {directives} }}
  }}
}}
"""


def program() -> Path:
    """Return the path of nginx, which is fetched with apt-get if it is not installed. Raises NoProgram."""
    if installed := shutil.which("nginx"):
        return Path(installed)
    return unpacked("nginx", with_dependencies=True) / "usr/sbin/nginx"


@contextmanager
def proxied(upstream: str, folder: Path, ingress: dict[str, Any] | None, path: str = "/") -> Iterator[str]:
    """Serve the upstream, and yield nginx's URL. Without an Ingress, nginx has the controller's defaults."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    annotations = ingress["metadata"]["annotations"] if ingress else {}
    directives = " ".join(
        directive.format(annotations[_PREFIX + name])
        for name, directive in _DIRECTIVES.items()
        if _PREFIX + name in annotations
    )
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, port=port, path=path, upstream=upstream, directives=directives))
    nginx = subprocess.Popen([program(), "-p", folder, "-c", config], stderr=subprocess.PIPE, text=True)
    try:
        _wait_for(port, nginx)
        yield f"http://127.0.0.1:{port}"
    finally:
        nginx.terminate()
        nginx.communicate()


def _wait_for(port: int, nginx: "subprocess.Popen[str]") -> None:
    while True:
        assert nginx.poll() is None, nginx.communicate()[1]
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
