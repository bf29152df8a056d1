"""A Kubernetes API server without nodes: etcd and kube-apiserver as plain processes on loopback.

The API is real: validation, CEL rules, server-side apply, RBAC, watches, status subresources and ServiceAccount
tokens. `controller_manager()` adds the controllers that create the Pods of a StatefulSet and delete objects without
an owner. There are no nodes, so Pods keep the status that the tests write. Root is not needed.
"""

import contextlib
import json
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from e2e.kind.build import binaries
from e2e.kind.progress import KindError, tail

_READY_WITHIN = 60.0
_ATTEMPTS = 3
_ADMIN = "admin"


class _Exited(KindError):
    """A process ended during its start. Another process may have taken its port."""


class ApiServer:
    """The two processes. `stop()` and `start()` stop and start only kube-apiserver, and keep port and data."""

    def __init__(self, programs: Mapping[str, Path], folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._programs = dict(programs)
        self._token = secrets.token_hex(16)
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._ports = _free_ports(3)
        (folder / "tokens.csv").write_text(f'{self._token},{_ADMIN},{_ADMIN},"system:masters"\n')
        _make_key(folder / "accounts.key")

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        """Start the processes that are not running, and wait until the server is ready.

        Raises KindError with the end of the log if a process fails.
        """
        if self._etcd is None:
            self._etcd = self._spawn("etcd", *self._etcd_options())
        if self._server is None:
            self._server = self._spawn("kube-apiserver", *self._server_options())
        self._wait_until_ready()
        self._write_kubeconfig(self.kubeconfig, self._token)

    def stop(self) -> None:
        """Stop kube-apiserver, as in an outage of the control plane. Clients lose their watches."""
        _end(self._server)
        self._server = None

    def pids(self) -> list[int]:
        return [process.pid for process in (self._etcd, self._server) if process is not None]

    def close(self) -> None:
        self.stop()
        _end(self._etcd)
        self._etcd = None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as administrator and return its output. Raises KindError if it fails."""
        command = [str(self._programs["kubectl"]), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise KindError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kubeconfig_of(self, namespace: str, service_account: str) -> Path:
        """Return a kubeconfig with only the permissions of this ServiceAccount, as the operator has them."""
        path = self.folder / f"kubeconfig-{namespace}-{service_account}"
        self._write_kubeconfig(path, self.kubectl("create", "token", "-n", namespace, service_account).strip())
        return path

    @contextlib.contextmanager
    def controller_manager(self, *controllers: str, out: IO[str] | None = None) -> Iterator[None]:
        """Run these controllers (such as `statefulset-controller`) of kube-controller-manager in the block."""
        self._programs |= binaries.ready(binaries.CONTROLLERS, out)
        (port,) = _free_ports(1)
        process = self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(controllers)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'controller-manager'}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )
        try:
            yield
        finally:
            _end(process)

    def _etcd_options(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[1:])
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data lives as long as the test
        ]

    def _server_options(self) -> list[str]:
        key = self.folder / "accounts.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports[1]}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[0]}",
            f"--cert-dir={self.folder}",  # the server writes its self-signed certificate here: apiserver.crt
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--disable-admission-plugins=ServiceAccount",  # no controller creates the default ServiceAccounts
            "--profiling=false",
        ]

    def _spawn(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        # The kernel kills the processes if this process is killed before it can stop them.
        prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*prefix, str(self._programs[program]), *options]
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN
        while not self._ready():
            for name, process in (("etcd", self._etcd), ("kube-apiserver", self._server)):
                if process is not None and process.poll() is not None:
                    raise _Exited(
                        f"{name} ended with code {process.returncode}; its log ends with:\n{self._tail(name)}"
                    )
            if time.monotonic() > deadline:
                raise KindError(
                    f"kube-apiserver is not ready after {_READY_WITHIN:.0f} s:\n{self._tail('kube-apiserver')}"
                )
            time.sleep(0.05)

    def _ready(self) -> bool:
        certificate = self.folder / "apiserver.crt"
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self._token}"})
        no_proxy = urllib.request.ProxyHandler({})
        try:
            context = ssl.create_default_context(cafile=str(certificate))
            opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=context))
            with opener.open(request, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _tail(self, program: str) -> str:
        return tail(self.folder / f"{program}.log")

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        name: dict[str, Any] = {"name": "kvasir"}
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "apiserver.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [name | {"cluster": cluster}],
            "users": [name | {"user": {"token": token}}],
            "contexts": [name | {"context": {"cluster": "kvasir", "user": "kvasir"}}],
            "current-context": "kvasir",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document, indent=2))


@contextlib.contextmanager
def apiserver(out: IO[str] | None = None) -> Iterator[ApiServer]:
    """Yield a new, empty API server. The server and its data are removed at the end of the block."""
    programs = binaries.ready(binaries.API, out)
    with tempfile.TemporaryDirectory(prefix="kvasir-apiserver-") as folder:
        server = _started(programs, Path(folder))
        try:
            yield server
        finally:
            server.close()


def _started(programs: Mapping[str, Path], folder: Path) -> ApiServer:
    for attempt in range(_ATTEMPTS):
        place = folder / str(attempt)
        place.mkdir()
        server = ApiServer(programs, place)
        try:
            server.start()
        except _Exited:
            server.close()
            if attempt == _ATTEMPTS - 1:
                raise
        except BaseException:
            server.close()
            raise
        else:
            return server
    raise AssertionError("the loop above returns or raises")


def _free_ports(count: int) -> list[int]:
    """Return free ports. All of them are bound at the same time, so that they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _make_key(path: Path) -> None:
    """Create the key that signs ServiceAccount tokens."""
    if shutil.which("openssl") is None:
        raise KindError("openssl is not in PATH: install it, to create the key of ServiceAccount tokens.")
    command = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a process. A graceful shutdown would wait for open watches, and the data is deleted anyway."""
    if process is not None:
        process.kill()
        process.wait()
