"""The scheduler of an engine: which requests a step computes, and when a request ends.

Reading order: scheduler.py, request_queues.py, admission_gates.py,
rations.py, lone_steps.py, service_order.py, token_budget.py, step_drafts.py,
step_results.py, endings.py.
"""
