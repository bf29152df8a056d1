"""Steps on the device while the host prepares the next one.

Reading order: launched_step.py, host_copy.py, decode_graphs.py.
"""
