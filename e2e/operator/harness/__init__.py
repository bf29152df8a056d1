"""What the tests of the operator on a real API server share. There are no nodes: tests write the status of pods.

Reading order:
    world                             a namespace and everything a test does in it
    operator_process                  the operator as a child process
    pod_status, kubelet               statuses of pods; a task that plays scheduler and kubelets
    cluster_faults, refusals, rights  quotas, policies and nodes; specs that the schema refuses; RBAC
    api_proxy, fake_engines           a recording proxy of the API server; hostile /status servers
    status_checker                    compares each status with the state of the cluster
"""
