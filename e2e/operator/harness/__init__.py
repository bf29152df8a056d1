"""Shared parts of the operator's tests on a real API server. There are no nodes: tests write the status of pods.

Reading order:
    world                             a namespace and the actions of a test in it
    operator_process, in_process      the operator as a child process, or in the process of the test
    engine_pods                       engine pods during a roll-out
    pod_status, kubelet               statuses of pods; a task that plays scheduler and kubelets
    cluster_faults, refusals, rights  quotas, policies and nodes; specs that the schema rejects; RBAC
    api_proxy, fake_engines           a recording proxy of the API server; hostile /status servers
    status_checker                    compares each status with the state of the cluster
"""
