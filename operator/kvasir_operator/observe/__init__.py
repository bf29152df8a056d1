"""Every read of a reconcile, into one `Observed`.

Read in this order: `observed` (the facts), `objects` (from the API server's dictionaries to typed facts),
`pod_state` (phase and reason of a pod), `status_reports` (GET /status of the pods), `cordons` (nodes that are being
drained), `memory` (what is kept between reconciles), `pod_events` (why pods are missing or wait),
`observer` (the reads themselves).
"""
