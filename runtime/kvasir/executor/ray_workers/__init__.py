"""Workers in processes that Ray places and starts.

Reading order: cluster.py, placement.py (the place of the workers), placed_worker.py (the engine's side),
worker_actor.py (the worker's side), handover.py (descriptors from one to the other).
"""
