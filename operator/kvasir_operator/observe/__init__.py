"""Every read of a reconcile, collected into one `Observed`.

Reading order: `observed` (the facts), `objects`, `pod_state`, `scheduling`, `added_containers`, `engine_ranks`,
`status_reports`, `cordons`, `frontend_links`, `service_memory`, `pod_events`, `service_observer` (the reads),
`watch` (the triggers).
"""
