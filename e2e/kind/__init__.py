"""A real Kubernetes for the end-to-end tests, also on a machine without registry, docker engine and systemd.

`cluster.cluster()` is what the tests call; `python -m e2e.kind up | down | status | node` is what the Makefile
calls. Where the cluster comes from, in this order:

1. `KUBECONFIG` is set: that cluster is used, nothing is built.
2. A docker engine answers and can pull kind's node image: plain `kind create cluster`.
3. Else everything is built here, as root, from Go modules and Debian packages: `binaries` and `rootfs` make what
   goes into `node_image`, `engine` runs a docker engine in a network namespace of its own, and kind runs on that.

`apiserver.apiserver()` is the cheaper thing: etcd and kube-apiserver alone, as plain processes, same binaries.
Everything made is kept by `cache` under a hash of what went in.
"""
