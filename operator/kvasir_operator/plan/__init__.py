"""Pure functions from the observed facts to a plan. They use no clock, socket or file.

Reading order: `plan`, `applies` (children to write), `load_scaling` and `zero` (how many engines),
`engine_rollout`, `lost_pods`, `waiting_ranks`, `frontend_rollout` (pods to delete), `cache_fill`, `service_status`,
`conditions`, `problem`, `rank_status`, `next_look`, `text`.
"""
