"""What `kvasir bench` measures.

`serve` puts load on any server of the OpenAI API: workload.py (what is asked), client.py (one request and its
times), load.py (when each is sent), report.py (the figures). `throughput` and `latency` run an engine in this
process: engine.py, offline.py. `startup` watches `kvasir serve` from its spawn on: startup.py, memory.py.

The load generator imports neither torch nor the engine.
"""
