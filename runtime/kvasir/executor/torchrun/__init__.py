"""An engine in each of the processes that torchrun has started, each with one worker.

Reading order: launched_rank.py, load_exchange.py, external_launcher.py.
"""
