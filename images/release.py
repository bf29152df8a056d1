"""Build, push and describe a release: `make release VERSION=0.2.0 REGISTRY=registry.example/kvasir`.

The images get labels of version, revision and source, and are pushed by the builder, whose `login` holds the
registry's password. dist/VERSION/ then contains install.yaml and the Helm chart, which name the images by digest,
a software bill of materials of each image, the list of images, and the checksums of these files.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images import build
from images.build_steps import ROOT, BuildError, Log, run, scratch, step
from images.installation import chart_package, install_manifest, kubectl
from images.lock_files import LOCKS, PINNED

_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
_REGISTRY: Final = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._/-]+)?")


@dataclass(frozen=True)
class Registry:
    place: str  # such as registry.example/kvasir
    plain_http: bool
    builder: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m images.release", description="Publish a release of Kvasir.")
    parser.add_argument("version", help="such as 0.2.0 or 0.2.0-rc.1")
    parser.add_argument(
        "--registry", required=True, help="where images are pushed, such as registry.example/kvasir"
    )
    parser.add_argument("--images", nargs="+", choices=build.TARGETS, default=build.TARGETS, help="default: all")
    parser.add_argument("--builder", choices=("docker", "buildah"), help="default: docker if its engine is running")
    parser.add_argument("--source", default=_source(), help="URL of the source code, for the images' labels")
    parser.add_argument(
        "--plain-http",
        action="store_true",
        help="the registry has no TLS; docker: see insecure-registries",
    )
    parser.add_argument("--out", type=Path, help="default: dist/VERSION")
    args = parser.parse_args(arguments)
    registry = Registry(args.registry.rstrip("/"), args.plain_http, args.builder or build.default_builder())
    try:
        check(args.version, registry)
        check_machine(args.images, registry.builder)
        build.build(args.images, args.version, registry.builder, labels(args.version, args.source))
        digests = {image: push(image, args.version, registry) for image in args.images}
        write(args.out or ROOT / "dist" / args.version, args.version, registry.place, digests)
    except BuildError as error:
        print(f"images.release: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def check(version: str, registry: Registry) -> None:
    ours = package_version()
    if not _VERSION.fullmatch(version):
        raise BuildError(f"{version!r} is not a version: use one such as 0.2.0 or 0.2.0-rc.1")
    if version.partition("-")[0] != ours:
        raise BuildError(f"the code has version {ours}, not {version}: change runtime/kvasir/version.py first")
    if not _REGISTRY.fullmatch(registry.place):
        raise BuildError(f"{registry.place!r} is not the place of images: use one such as registry.example/kvasir")


def check_machine(images: Sequence[str], builder: str) -> None:
    """Raise BuildError if something is missing that the release needs, before images are built."""
    kubectl()
    based = any(os.environ.get(name) for name in ("BASE_IMAGE", "ENGINE_BASE_IMAGE"))
    if "engine" in images and builder == "buildah" and not based:
        raise BuildError(
            "engine: the base image that is made for buildah has no C compiler, which Triton needs on a GPU: set"
            " ENGINE_BASE_IMAGE to an image with Python and one, start docker, or leave out engine with --images"
        )


def labels(version: str, source: str) -> dict[str, str]:
    revision = _git("describe", "--always", "--abbrev=40", "--match=", "--dirty")
    found = {"version": version, "revision": revision, "source": source}
    return {f"org.opencontainers.image.{name}": value for name, value in found.items() if value}


def push(image: str, version: str, registry: Registry) -> str:
    """Push an image and return its digest."""
    name = f"kvasir-{image}:{version}"
    target = f"{registry.place}/{name}"
    with step(f"push {image}: {target}") as log, scratch() as directory:
        if registry.builder == "docker":
            log.result = _push_with_docker(name, target, log)
        else:
            digest = directory / "digest"
            insecure = ("--tls-verify=false",) if registry.plain_http else ()
            options = ("--digestfile", digest, *insecure)
            command = ("buildah", "push", *options, build.full_name(name), f"docker://{target}")
            run(command, log, build.Buildah().environment)
            log.result = digest.read_text().strip()
        return log.result


def _push_with_docker(name: str, target: str, log: Log) -> str:
    run(["docker", "tag", name, target], log)
    run(["docker", "push", "--quiet", target], log)
    command = ["docker", "image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', target]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = pushed_digest(target, answer.stdout.splitlines())
    if not found:
        raise BuildError(f"docker reports no digest of {target}: {answer.stderr.strip() or answer.stdout.strip()}")
    return found


def pushed_digest(target: str, names: Sequence[str]) -> str:
    """Return the digest of an image in this registry, from its names name@digest; "" without one."""
    # docker leaves out the host of its default registry
    place = target.rpartition(":")[0].removeprefix("docker.io/")
    return next((digest for name, _, digest in (line.partition("@") for line in names) if name == place), "")


def write(out: Path, version: str, registry: str, digests: Mapping[str, str]) -> None:
    """Write the files of a release. Images without a digest are named by tag."""
    with step(f"files: {out}") as log, scratch() as directory:
        packages = directory / "requirements.txt"
        out.mkdir(parents=True, exist_ok=True)
        names = [f"{registry}/kvasir-{image}:{version}@{digest}" for image, digest in digests.items()]
        (out / "images.txt").write_text("\n".join(names) + "\n")
        (out / "install.yaml").write_text(install_manifest(version, registry, digests))
        (out / f"kvasir-{version}.tgz").write_bytes(chart_package(version, registry, digests))
        for image in digests:
            packages.write_text(requirements(image))
            options = ("--output-reproducible", "--of", "JSON", "-o", out / f"kvasir-{image}.cdx.json")
            run((sys.executable, "-m", "cyclonedx_py", "requirements", packages, *options), log)
        files = sorted(path for path in out.iterdir() if path.name != "SHA256SUMS")
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
        (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")


def requirements(image: str) -> str:
    """Return the Python packages of an image, for its bill of materials."""
    lock = (LOCKS / f"{image}.txt").read_text()
    # the lock has no torch, because its index and so its hashes are the builder's choice
    return f"{lock}torch=={PINNED['torch']}\n" if image == "engine-cpu" else lock


def package_version() -> str:
    found = re.search(r'^__version__ = "(.*)"$', (ROOT / "runtime/kvasir/version.py").read_text(), re.MULTILINE)
    assert found, "version.py must set __version__"
    return found[1]


def _source() -> str:
    url = _git("config", "--default", "", "--get", "remote.origin.url")
    return url if url.startswith("https://") else ""


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
