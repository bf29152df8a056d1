"""What connects the operator with a Kubernetes cluster, apart from what it decides.

Read in this order: `kinds` (the objects and their paths), `client` (every request), `events` (Kubernetes Events),
`watch` (what happens puts keys on the work queue), `workqueue` (which key is handled when), `lease` (who leads).
"""
