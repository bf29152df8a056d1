"""The connection between the operator and a Kubernetes cluster. It makes no decisions.

Reading order: `kinds`, `cluster_client`, `events`, `workqueue`, `lease`.
"""
