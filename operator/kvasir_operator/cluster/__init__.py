"""The connection between the operator and a Kubernetes cluster, without any decisions.

Read in this order: `kinds` (the objects and their paths), `client` (every request), `events` (Kubernetes Events),
`watch` (what happens puts keys on the work queue), `workqueue` (which key is handled when), `lease` (who leads).
"""
