"""The engine's end of the link: one thread with a DEALER socket per frontend.

Reading order: engine_link.py (the interface for the engine), announced_engine.py (the engine as frontends see it),
frontends.py (all frontends), frontend_connection.py (one of them), reactor.py (the thread's event loop),
resolver.py (DNS names of frontends).
"""
