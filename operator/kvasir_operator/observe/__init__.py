"""Every read of a reconcile, collected into one `Observed`.

Reading order:
    observed          the facts, as immutable types
    objects           conversion of the API server's dictionaries to these types
    pod_state         phase and reason of a pod
    scheduling        why no node accepts a pod
    added_containers  failures of containers that webhooks add
    engine_ranks      the pods of each rank, with one state
    status_reports    GET /status of the pods
    cordons           nodes that are being drained or lost
    frontend_links    whether an engine is linked to all frontends
    service_memory    state kept between reconciles
    pod_events        why pods are missing or cannot start
    service_observer  the reads themselves
"""
