"""A simulator of scaling by load: the operator's decisions and a frontend's reports on a simulated clock.

Reading order: traces.py (the requests), simulation.py (one run), __main__.py (the command and its table).
"""
