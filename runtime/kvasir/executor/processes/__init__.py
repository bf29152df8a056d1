"""The worker processes of one machine.

Reading order: worker_messages.py, rendezvous.py, worker_process.py (a worker's side), started_worker.py,
local_workers.py (the engine's side).
"""
