"""Workers in processes that Ray starts: Ray places them and reports why one died, and nothing else goes through it.

Reading order: cluster.py (the connection to Ray), placement.py (chooses the place of the workers), placed_worker.py
(the engine's side of a worker), worker_actor.py (the worker's side), handover.py (how descriptors get from one to
the other).
"""
