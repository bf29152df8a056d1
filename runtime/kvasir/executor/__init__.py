"""The executor: runs an engine's workers, in its own process or in others.

Reading order: executor.py, executor_for.py, worker_host.py, in_process.py, thread_count.py, multiprocess.py,
remote_workers.py, processes/, shared_memory/, nodes/ (several pods), ray_workers/, torchrun/.
"""
