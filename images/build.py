"""Build Kvasir's images from images/Dockerfile, with docker if its engine is running, otherwise with buildah.

buildah needs no registry, but root: unless BASE_IMAGE is set, debootstrap makes a Debian base image from the
sources of this machine's apt. Images are kept below the user's cache directory, and rebuilt only if their inputs
have changed. Standard library only.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from images.build_steps import CACHE, ROOT, BuildError, Log, pip_secrets, run, scratch, step, succeeds

DEFAULT: Final = ("operator", "frontend", "engine")
TARGETS: Final = (*DEFAULT, "engine-cpu")
STAGES: Final = ("tools", "code")  # their images have names so that they are not pruned
CONTEXT: Final = (  # the paths that .dockerignore allows
    *("images/locks", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"),
    *("crds", "operator", "runtime"),
)
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

SUITE: Final = "bookworm"
PACKAGES: Final = "ca-certificates,libstdc++6,python3,python3-venv"
NOT_NEEDED: Final = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log", "etc/hostname", "etc/resolv.conf"),
)
SPACE: Final = {"tools": 2, "code": 1, "operator": 1, "frontend": 1, "engine": 20, "engine-cpu": 4}
"""Free disk space in GB that a build needs."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m images.build", description="Build Kvasir's images.")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: the first three"
    )
    parser.add_argument("--tag", default="dev", help="tag of the images kvasir-TARGET (default: dev)")
    parser.add_argument("--builder", choices=("docker", "buildah"), help="default: docker if its engine is running")
    args = parser.parse_args()
    targets = args.targets or list(DEFAULT)
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    try:
        build(targets, args.tag, args.builder or default_builder())
    except BuildError as error:
        print(f"images.build: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def build(targets: Sequence[str], tag: str, builder: str, labels: Mapping[str, str] = NOTHING) -> None:
    """Build the images kvasir-TARGET:TAG, with these labels in addition to those of the Dockerfile."""
    if "engine-cpu" in targets and not os.environ.get("TORCH_CPU_INDEX_URL"):
        raise BuildError("engine-cpu: set TORCH_CPU_INDEX_URL to a package index of torch for CPUs")
    (build_with_docker if builder == "docker" else build_with_buildah)(targets, tag, labels)


def default_builder() -> str:
    return "docker" if shutil.which("docker") is not None and succeeds(["docker", "info"]) else "buildah"


def build_with_docker(targets: Sequence[str], tag: str, labels: Mapping[str, str]) -> None:
    arguments = [*build_arguments(os.environ.get("BASE_IMAGE")), *label_options(labels)]
    for target in targets:
        name = f"kvasir-{target}:{tag}"
        with step(name) as log, pip_secrets() as secrets:
            command = ["docker", "build", *arguments, *secrets, "-f", "images/Dockerfile"]
            run([*command, "--target", target, "-t", name, "."], log, env={"DOCKER_BUILDKIT": "1"})


def label_options(labels: Mapping[str, str]) -> list[str]:
    return [f"--label={name}={value}" for name, value in labels.items()]


def build_with_buildah(targets: Sequence[str], tag: str, labels: Mapping[str, str]) -> None:
    if os.geteuid() != 0:
        raise BuildError("buildah and debootstrap need root: start docker, or run this script as root")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install_tools()
        buildah = Buildah()
        buildah.drop_leftovers()
        arguments = build_arguments(os.environ.get("BASE_IMAGE") or buildah.debian())
        for stage in STAGES:
            buildah.build(stage, f"kvasir-{stage}:dev", arguments)
        for target in targets:
            buildah.build(target, f"kvasir-{target}:{tag}", arguments, labels)
        buildah.prune()
        print(
            "to use these images, run buildah with",
            *(f"{key}={value}" for key, value in buildah.environment.items()),
        )


class Buildah:
    """Images in a separate buildah storage, below CACHE."""

    def __init__(self) -> None:
        settings = CACHE / "storage.conf"
        places = f'graphroot = "{CACHE}/storage"\nrunroot = "{CACHE}/run"\n'
        settings.write_text(f'[storage]\ndriver = "overlay"\n{places}')
        (CACHE / "tmp").mkdir(exist_ok=True)
        self.environment = {"CONTAINERS_STORAGE_CONF": str(settings)}
        self._environment = {**self.environment, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(CACHE / "tmp")}

    def build(self, target: str, name: str, arguments: list[str], labels: Mapping[str, str] = NOTHING) -> None:
        context = () if target == "tools" else CONTEXT
        inputs = digest(("images/Dockerfile", *context), (target, *arguments, *label_options(labels)))
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
            run([*command, "-t", full_name(name), "."], log, self._environment)
            if labels:
                self._add_labels(name, {**labels, "dev.kvasir.inputs": inputs}, log)
            log.result = self._size(name)

    def _add_labels(self, name: str, labels: Mapping[str, str], log: Log) -> None:
        # `buildah build` returns a cached image with other labels, if only they differ.
        container = self._ask("from", "--pull-never", full_name(name)).strip()
        run(["buildah", "config", *label_options(labels), container], log, self._environment)
        commit = ("buildah", "commit", "--quiet", "--rm", "--format", "oci")
        run([*commit, container, full_name(name)], log, self._environment)

    def debian(self) -> str:
        """Return the base image, Debian with Python. It is made once."""
        recipe = hashlib.sha256(f"{SUITE} {PACKAGES} {NOT_NEEDED}".encode()).hexdigest()[:12]
        name = f"kvasir-base:{recipe}"
        if self._size(name):
            return full_name(name)
        with step(f"base image: Debian {SUITE} with Python") as log, scratch() as directory:
            root = directory / "root"
            mirror = [uri] if (uri := debian_mirror()) else []
            # In namespaces of its own: an interrupted run leaves no mount and no process.
            alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
            run([*alone, "debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, *mirror], log)
            for path in NOT_NEEDED:
                run(["rm", "-rf", root / path], log)
            (directory / "Dockerfile").write_text('FROM scratch\nCOPY root /\nENV LANG=C.UTF-8\nCMD ["python3"]\n')
            run(["buildah", "build", "--format", "oci", "-t", full_name(name), directory], log, self._environment)
            log.result = self._size(name)
        for other in self._ask("images", "--format", "{{.Name}}:{{.Tag}}").split():
            if other.startswith(full_name("kvasir-base:")) and other != full_name(name):
                self._ask("rmi", other)
        return full_name(name)

    def drop_leftovers(self) -> None:
        # Working containers of a failed or killed build prevent images from being loaded.
        self._ask("rm", "--all")

    def prune(self) -> None:
        self._ask("rmi", "--prune")

    def _built_from(self, name: str) -> str | None:
        answer = self._ask("inspect", "--type", "image", full_name(name))
        if not answer:
            return None
        labels: dict[str, str] = json.loads(answer)["OCIv1"]["config"].get("Labels") or {}
        return labels.get("dev.kvasir.inputs")

    def _size(self, name: str) -> str:
        """Return a size for people; "" if the image does not exist."""
        return self._ask("images", "--format", "{{.Size}}", full_name(name)).strip()

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
                f"{CACHE} has {free:.0f} GB free, but building the {target} image needs up to {needed} GB: free "
                "disk space, or set XDG_CACHE_HOME to a directory on another disk"
            )


def full_name(name: str) -> str:
    # kubelet and containerd use the full form of a name without a registry.
    return f"docker.io/library/{name}"


# ---- tools and settings of this machine


def install_tools() -> None:
    missing = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise BuildError(f"no docker engine is running: start one, or install {' and '.join(missing)}")
    with step(f"apt-get install {' '.join(missing)}") as log:
        run(["apt-get", "-q", "update"], log)
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "-q", "-y", "--no-install-recommends", "install", *missing], log, quiet)


def debian_mirror() -> str | None:
    """Return the mirror in this machine's apt sources; None for debootstrap's default."""
    fields = "$(CODENAME) $(COMPONENT) $(REPO_URI)"
    command = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in answer.stdout.splitlines():
        codename, component, uri = line.split(" ", 2)
        if (codename, component) == (SUITE, "main"):
            return uri
    return None


def build_arguments(base_image: str | None) -> list[str]:
    values = {
        "BASE_IMAGE": base_image,
        "ENGINE_BASE_IMAGE": os.environ.get("ENGINE_BASE_IMAGE") or base_image,
        "TORCH_INDEX_URL": os.environ.get("TORCH_INDEX_URL"),
        "TORCH_CPU_INDEX_URL": os.environ.get("TORCH_CPU_INDEX_URL"),
    }
    return [f"--build-arg={name}={value}" for name, value in values.items() if value]


def digest(paths: tuple[str, ...], more: tuple[str, ...]) -> str:
    """Return a digest of the files below `paths`, names included, and of the strings in `more`."""
    state = hashlib.sha256("\0".join(more).encode())
    for start in paths:
        top = ROOT / start
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                state.update(f"\0{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
