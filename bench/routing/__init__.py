"""A simulator of routing: real schedulers, prefix caches and routers on a simulated clock.

Reading order: traces.py (the requests), engines.py (engines whose steps take simulated time), policies.py (ways to
pick an engine), simulation.py (one run), __main__.py (the command and its table).
"""
