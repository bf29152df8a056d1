"""Which requests run in a step, and when a request is over.

Reading order: engine_request.py (a request's state), scheduler.py (a step's plan), admission_gates.py (may the
next one start?), service_order.py (who is next), token_budget.py (how many may wait), endings.py (why a request
ends).
"""
