"""Measurements of `kvasir bench`.

`serve` puts load on a server: load_generator.py, without torch or an engine. `throughput` and `latency` run an
engine in this process: offline.py. `startup` times `kvasir serve`: startup.py.
"""
