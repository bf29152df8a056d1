"""Workers in processes that Ray starts. Ray places them and gives the reason of their end; nothing else passes it.

Reading order: cluster.py, placement.py (the place of the workers), placed_worker.py (the engine's side),
worker_actor.py (the worker's side), handover.py (descriptors from one to the other).
"""
