"""What the steps need of the machine's Debian: packages, the archive it is configured for, root.

Called by the steps that run Debian's tools. No archive is named here: apt's own configuration says which.
"""

import os
import shutil
import subprocess

from e2e.kind.progress import KindError, Log

SUITE = "bookworm"
"""Debian 12: its containerd, runc and systemd are the ones that kind's files were tried with."""


def require_root() -> None:
    if os.geteuid() != 0:
        raise KindError(
            "Building a cluster on this machine takes root: it makes a network namespace, cgroups and mounts. "
            "Run it as root, start a docker engine that can pull images, or set KUBECONFIG to a cluster of yours."
        )


def install(log: Log, *packages: str) -> None:
    """Have these packages installed; apt-get is asked only for those that are missing."""
    if shutil.which("apt-get") is None:
        raise KindError(f"This step needs apt-get (Debian) to install {', '.join(packages)}.")
    missing = [package for package in packages if not _installed(package)]
    if missing:
        require_root()
        log.run("apt-get", "-q", "update")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        log.run("apt-get", "-q", "-y", "--no-install-recommends", "install", *missing, env=quiet)


def archive(log: Log) -> str:
    """The address of the Debian archive that this machine's apt is configured for."""
    fields = log.read(
        "apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(SITE)", "Created-By: Packages"
    )
    for line in fields.splitlines():
        release, component, site = line.split(maxsplit=2)
        if (release, component) == (SUITE, "main"):
            return site
    raise KindError(
        f"The node image is made of Debian's {SUITE} packages, and this machine's apt has no source for them. "
        "Use a machine with Debian 12, or one with docker, kind and a registry, or set KUBECONFIG."
    )


def _installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return subprocess.run(command, capture_output=True, text=True).stdout == "installed"
