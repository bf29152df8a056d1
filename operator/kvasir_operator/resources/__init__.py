"""Pure functions from an InferenceService to its Kubernetes objects.

The operator applies the objects; `kvasir up` runs the same pod templates as local processes. The user's settings
therefore go into a container's arguments. Everything that depends on the place (addresses, ports, mounted
directories, the rank) goes into its environment, which `kvasir up` replaces.

Reading order:
    children                                    the list of all objects
    engine_stateful_set, frontend_deployment    the two workloads
    pod                                         the pod template that both share
    network, network_policy, disruption, security
    names, release                              shared names, the operator's release
    pinning                                     keeps a pod template when the operator is upgraded
"""
