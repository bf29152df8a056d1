"""The executor: runs an engine's workers.

Reading order: executor.py, choose.py, worker_host.py, in_process.py, thread_count.py; shared_memory/.
"""
