"""The connection between the operator and a Kubernetes cluster. It makes no decisions.

Reading order:
    kinds           the kinds of object and their URL paths
    cluster_client  every request to the API server
    events          Kubernetes Events about an InferenceService
    watch           watches that put keys on the work queue
    workqueue       when each key is handled
    lease           leader election
"""
