"""A real Kubernetes cluster for the end-to-end tests, also on a machine without a registry, docker and systemd.

The tests call `cluster.cluster()`. The Makefile calls `python -m e2e.kind up | down | status | node`. The cluster
comes from the first of these sources that is available:

1. `KUBECONFIG` is set: the tests use that cluster and build nothing.
2. A docker engine is running and can pull kind's node image: plain `kind create cluster`.
3. Otherwise everything is built on this machine, as root, from Go modules and Debian packages. `engine` then runs a
   docker engine in its own network namespace, and kind runs on that.

`apiserver.apiserver()` is a cheaper alternative: only etcd and kube-apiserver, as plain processes.

Reading order:
    cluster         where the cluster comes from
    plain, own      sources 2 and 3
    kind_cluster    the three nodes that kind creates for both
    build/          Kubernetes, the node image and the images of the cluster's own pods
    engine, traces  the docker engine of source 3, and the removal of everything it leaves behind
    loading/        loads images into the nodes
    apiserver       an API server without nodes
    cache           keeps everything that is built, under a hash of its inputs
    progress        output while a cluster is being created
"""
