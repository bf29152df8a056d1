"""Builds Kvasir's images from images/Dockerfile, with docker where an engine answers, else with buildah.

`make images` and the end-to-end tests call it. With docker it is `docker build`, the base image pulled as usual.
With buildah no registry is needed: unless BASE_IMAGE is set, the base is a small Debian made by debootstrap from
the package sources that this machine's apt uses. That takes root, and apt-get installs buildah and debootstrap if
they are missing. Everything is kept below the user's cache directory, and an image whose inputs have not changed is
not built again.

pip's settings of this machine (index, certificates) reach the build as secrets and do not end up in an image.
Standard library only.
"""

import argparse
import ast
import fcntl
import hashlib
import json
import os
import shutil
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
TARGETS: Final = ("operator", "frontend", "engine")
TOOLS: Final = "tools"
"""The Dockerfile's stage with what builds the others; a name keeps it from being pruned."""
CONTEXT: Final = (
    *("images/requirements.py", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"),
    *("crds", "operator", "runtime"),
)
"""What an image is made of besides the Dockerfile: what .dockerignore lets through."""

SUITE: Final = "bookworm"
PACKAGES: Final = "ca-certificates,libstdc++6,python3,python3-venv"
NOT_NEEDED: Final = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log", "etc/hostname", "etc/resolv.conf"),
)
SPACE: Final = {TOOLS: 2, "operator": 1, "frontend": 1, "engine": 20}
"""Free GB that a build takes at its peak; the finished engine image is 6."""
PIP_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "timeout", "retries")
"""Where pip finds packages; the rest of this machine's settings is its own business."""


class BuildError(Exception):
    """What failed and what to do, for the user."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="images/build.py", description="Build Kvasir's images.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--tag", default="dev", help="tag of the images kvasir-TARGET (default: dev)")
    parser.add_argument("--builder", choices=("docker", "buildah"), help="default: docker if an engine answers")
    args = parser.parse_args()
    targets = args.targets or list(TARGETS)
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    try:
        if (args.builder or ("docker" if docker_answers() else "buildah")) == "docker":
            build_with_docker(targets, args.tag)
        else:
            build_with_buildah(targets, args.tag)
    except BuildError as error:
        print(f"images/build.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def docker_answers() -> bool:
    return shutil.which("docker") is not None and succeeds(["docker", "info"])


def build_with_docker(targets: list[str], tag: str) -> None:
    arguments = build_arguments(os.environ.get("BASE_IMAGE"))
    for target in targets:
        name = f"kvasir-{target}:{tag}"
        with step(name) as log, pip_secrets() as secrets:
            command = ["docker", "build", *arguments, *secrets, "-f", "images/Dockerfile"]
            run([*command, "--target", target, "-t", name, "."], log, env={"DOCKER_BUILDKIT": "1"})


def build_with_buildah(targets: list[str], tag: str) -> None:
    if os.geteuid() != 0:
        raise BuildError("buildah's chroot isolation and debootstrap need root; start docker, or run this as root")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install_tools()
        buildah = Buildah()
        buildah.drop_leftovers()
        arguments = build_arguments(os.environ.get("BASE_IMAGE") or buildah.debian())
        for target in (TOOLS, *targets):
            buildah.build(target, f"kvasir-{target}:{tag}", arguments)
        buildah.prune()
        print("buildah has them with", *(f"{key}={value}" for key, value in buildah.environment.items()))


class Buildah:
    """Images in a storage of their own, below CACHE."""

    def __init__(self) -> None:
        settings = CACHE / "storage.conf"
        places = f'graphroot = "{CACHE}/storage"\nrunroot = "{CACHE}/run"\n'
        settings.write_text(f'[storage]\ndriver = "overlay"\n{places}')
        (CACHE / "tmp").mkdir(exist_ok=True)
        self.environment = {"CONTAINERS_STORAGE_CONF": str(settings)}
        """In which buildah finds the images."""
        self._environment = {**self.environment, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(CACHE / "tmp")}

    def build(self, target: str, name: str, arguments: list[str]) -> None:
        context = () if target == TOOLS else CONTEXT
        inputs = digest(("images/Dockerfile", *context), (target, *arguments))
        if self._built_from(name) == inputs:
            print(f"{name} is up to date, {self._size(name)}", flush=True)
            return
        self._check_space(target, name)
        with step(name) as log, pip_secrets() as secrets:
            options = ["--layers", "--network", "host", "--format", "oci", "--label", f"dev.kvasir.inputs={inputs}"]
            command = [
                "buildah",
                "build",
                *options,
                *arguments,
                *secrets,
                "-f",
                "images/Dockerfile",
                "--target",
                target,
            ]
            run([*command, "-t", _full(name), "."], log, self._environment)
            log.result = self._size(name)

    def debian(self) -> str:
        """The base image, made once: Debian's smallest root file system and Python."""
        recipe = hashlib.sha256(f"{SUITE} {PACKAGES} {NOT_NEEDED}".encode()).hexdigest()[:12]
        name = f"kvasir-base:{recipe}"
        if self._size(name):
            return _full(name)
        with step(f"base image: Debian {SUITE} with Python") as log, scratch() as directory:
            root = directory / "root"
            mirror = [uri] if (uri := debian_mirror()) else []
            # In namespaces of its own, so that an interrupted run leaves no mount and no process.
            alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
            run([*alone, "debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, *mirror], log)
            for path in NOT_NEEDED:
                run(["rm", "-rf", root / path], log)
            (directory / "Dockerfile").write_text('FROM scratch\nCOPY root /\nENV LANG=C.UTF-8\nCMD ["python3"]\n')
            run(["buildah", "build", "--format", "oci", "-t", _full(name), directory], log, self._environment)
            log.result = self._size(name)
        for other in self._ask("images", "--format", "{{.Name}}:{{.Tag}}").split():
            if other.startswith(_full("kvasir-base:")) and other != _full(name):
                self._ask("rmi", other)
        return _full(name)

    def drop_leftovers(self) -> None:
        """Remove the working containers of a build that failed or was killed: images cannot be loaded past them."""
        self._ask("rm", "--all")

    def prune(self) -> None:
        """Drop what no image uses any more: layers of older code, stages that only brought files."""
        self._ask("rmi", "--prune")

    def _built_from(self, name: str) -> str | None:
        """The digest of the inputs of the image of this name."""
        answer = self._ask("inspect", "--type", "image", _full(name))
        if not answer:
            return None
        labels: dict[str, str] = json.loads(answer)["OCIv1"]["config"].get("Labels") or {}
        return labels.get("dev.kvasir.inputs")

    def _size(self, name: str) -> str:
        """In words; empty where there is no such image."""
        return self._ask("images", "--format", "{{.Size}}", _full(name)).strip()

    def _ask(self, *arguments: str) -> str:
        environment = {**os.environ, **self._environment}
        answer = subprocess.run(
            ["buildah", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        return answer.stdout if answer.returncode == 0 else ""

    def _check_space(self, target: str, name: str) -> None:
        needed = 1 if self._size(name) else SPACE[target]
        free = shutil.disk_usage(CACHE).free / 1e9
        if free < needed:
            raise BuildError(
                f"{CACHE} has {free:.0f} GB free, and the {target} image may take {needed} while it is built; make "
                "room or let XDG_CACHE_HOME name a directory on another disk"
            )


def _full(name: str) -> str:
    """As kubelet and containerd write a name without a registry."""
    return f"docker.io/library/{name}"


# ---- tools and settings of this machine


def install_tools() -> None:
    """Buildah and debootstrap, from the machine's own package sources."""
    missing = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise BuildError(f"no docker engine answers; start one, or install {' and '.join(missing)}")
    with step(f"apt-get install {' '.join(missing)}") as log:
        run(["apt-get", "-q", "update"], log)
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "-q", "-y", "--no-install-recommends", "install", *missing], log, quiet)


def debian_mirror() -> str | None:
    """Where this machine's apt takes the suite from; None: debootstrap's own choice."""
    fields = "$(CODENAME) $(COMPONENT) $(REPO_URI)"
    command = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in answer.stdout.splitlines():
        codename, component, uri = line.split(" ", 2)
        if (codename, component) == (SUITE, "main"):
            return uri
    return None


def build_arguments(base_image: str | None) -> list[str]:
    values = {"BASE_IMAGE": base_image, "TORCH_INDEX_URL": os.environ.get("TORCH_INDEX_URL")}
    return [f"--build-arg={name}={value}" for name, value in values.items() if value]


@contextmanager
def pip_secrets() -> Iterator[list[str]]:
    """Options that give the build this machine's pip settings and certificates, while the block runs."""
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
    """From pip's configuration files, where there is a pip, and from its environment variables, which rule."""
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


# ---- steps


class Log:
    """A step's output: a file, shown when the step fails. `result` is told when it succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result = ""


@contextmanager
def step(title: str) -> Iterator[Log]:
    """One line of progress: what, how long, how large."""
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
        words = f"{Path(command[0]).name} ended with {ended.returncode}; all of its output: {log.path}"
        raise BuildError(f"{words}\n{last}")


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the cache's disk, for this process only."""
    parent = CACHE / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield Path(directory)


def digest(paths: tuple[str, ...], more: tuple[str, ...]) -> str:
    """Over names and contents of the files below these paths, and the strings."""
    state = hashlib.sha256("\0".join(more).encode())
    for start in paths:
        top = ROOT / start
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                state.update(f"\0{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
