"""The executor: runs an engine's workers. Reading order: executor.py, in_process.py, thread_count.py."""
