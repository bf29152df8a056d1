"""The executor: runs an engine's workers, in its own process or in others.

Reading order: executor.py, executor_for.py, worker_host.py, in_process.py, thread_count.py; launched_rank.py,
external_launcher.py; worker_messages.py, worker_process.py (a worker's side), started_worker.py, worker_states.py,
local_workers.py, remote_workers.py, multiprocess.py (the engine's side), shared_memory/, nodes/, ray_workers/.
"""
