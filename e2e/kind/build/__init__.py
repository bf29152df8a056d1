"""Builds the node image of kind from Go modules and Debian packages, without a registry.

Reading order:
    node_image        the node image, from everything below
    binaries, go/     Kubernetes and the other programs, from pinned Go modules
    debian, rootfs    Debian packages and the root file system of a node
    images, oci       images of the cluster's own pods, and the archive formats
    node/, inside/    files that go into a node, and scripts that run in it
"""
