"""What `kvasir bench` measures.

`serve` puts load on any server of the OpenAI API: workload.py (the requests), timed_request.py (one request and its
times), load_generator.py (when each is sent), figures.py (the figures). `throughput` and `latency` run an engine in
this process: local_engine.py, offline.py. `startup` measures `kvasir serve` from its spawn on: startup.py,
process_memory.py.

The load generator imports neither torch nor the engine.
"""
