"""An engine with one worker in each process that torchrun has started.

Reading order: launched_rank.py, load_exchange.py, external_launcher.py.
"""
