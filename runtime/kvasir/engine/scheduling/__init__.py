"""The scheduler of an engine: which requests run in a step, and when a request ends.

Reading order: engine_request.py (the state of a request), scheduler.py (the plan of a step), request_queues.py
(waiting, blocked or running), entrance_check.py (requests that can never run), admission_gates.py (whether the next
one may start), rations.py (what a step may hold), lone_steps.py (requests that share no step), service_order.py
(the order), token_budget.py (how many may wait), step_results.py (the tokens of a step), endings.py (why a request
ends).
"""
