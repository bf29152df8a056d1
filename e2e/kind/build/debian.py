"""The requirements of the build on the machine's Debian: packages, root, and the Debian archive.

No archive is named here: the archive is that of apt's configuration.
"""

import os
import shutil
import subprocess

from e2e.kind.progress import KindError, Log

SUITE = "bookworm"
"""Debian 12. kind's files were tested with its containerd, runc and systemd."""


def require_root() -> None:
    if os.geteuid() != 0:
        raise KindError(
            "Building a cluster on this machine needs root, for a network namespace, cgroups and mounts. "
            "Run it as root, start a docker engine that can pull images, or set KUBECONFIG to a cluster of yours."
        )


def install(log: Log, *packages: str) -> None:
    """Install these packages with apt-get, if any of them is missing."""
    if shutil.which("apt-get") is None:
        raise KindError(f"This step needs apt-get (Debian) to install {', '.join(packages)}.")
    missing = [package for package in packages if not _installed(package)]
    if missing:
        require_root()
        log.run("apt-get", "-q", "update")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        log.run("apt-get", "-q", "-y", "--no-install-recommends", "install", *missing, env=quiet)


def archive(log: Log) -> str:
    """Return the address of the Debian archive in this machine's apt configuration."""
    fields = log.read(
        "apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(SITE)", "Created-By: Packages"
    )
    for line in fields.splitlines():
        release, component, site = line.split(maxsplit=2)
        if (release, component) == (SUITE, "main"):
            return site
    raise KindError(
        f"The node image needs Debian's {SUITE} packages, but this machine's apt has no source for them. "
        "Use a machine with Debian 12, or one with docker, kind and a registry, or set KUBECONFIG."
    )


def _installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return subprocess.run(command, capture_output=True, text=True).stdout == "installed"
