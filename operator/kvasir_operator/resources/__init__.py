"""Pure functions from an InferenceService to its Kubernetes objects.

`kvasir up` runs the same pod templates as local processes. The user's settings therefore go into a container's
arguments, and what depends on the place (addresses, ports, directories, rank) into its environment.

Reading order: `children`, `engine_stateful_set`, `frontend_deployment`, `pod`, `model_volume`, `model_cache`,
`network`, `network_policy`, `exposure`, `disruption`, `taints`, `security`, `names`, `release`, `pinning`.
"""
