"""Builds the node's Debian root file system with debootstrap, as one compressed archive."""

import shutil
from pathlib import Path

from e2e.kind import cache
from e2e.kind.build import debian
from e2e.kind.progress import Log

_PACKAGES = (
    *(
        "bash",
        "busybox",
        "ca-certificates",
        "conntrack",
        "containerd",
        "containernetworking-plugins",
        "curl",
        "dbus",
    ),
    *("e2fsprogs", "ethtool", "hostname", "iproute2", "iptables", "jq", "kmod", "libseccomp2", "mount", "nftables"),
    *("procps", "runc", "socat", "systemd", "util-linux"),
)
_NOT_NEEDED = (
    *("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "usr/share/doc", "usr/share/man", "usr/share/info"),
    "usr/share/locale",
    # systemd-sysctl in a privileged node would set these for the whole machine
    *("usr/lib/sysctl.d/50-pid-max.conf", "usr/lib/sysctl.d/99-protect-links.conf"),
)


def key() -> str:
    return cache.digest(debian.SUITE, *_PACKAGES, *_NOT_NEEDED)


def make(log: Log) -> Path:
    """Return the archive of the root file system."""
    return cache.make("rootfs", key(), lambda out: _build(log, out)) / "rootfs.tar.gz"


def _build(log: Log, out: Path) -> None:
    debian.require_root()
    debian.install(log, "debootstrap")
    tree = out / "tree"
    options = ("--variant=minbase", f"--include={','.join(_PACKAGES)}")
    # Separate mount and process namespaces ensure that an interrupted run leaves no mount and no process.
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    log.run(*alone, "debootstrap", *options, debian.SUITE, tree, debian.archive(log))
    for pattern in _NOT_NEEDED:
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    log.run("tar", "-C", tree, "--numeric-owner", "-I", "gzip -1", "-cf", out / "rootfs.tar.gz", ".")
    shutil.rmtree(tree)
