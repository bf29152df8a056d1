"""How many engines the load of a service needs. Pure functions, to read in this order:

load_sample, recommendation, load_history.
"""
