"""The process's own duties: signals, listening sockets, failures, probes, progress, logs.

Reading order: listening.py, failures.py, ops_server.py, progress.py, seldom_log.py, words.py,
environment_report.py, process_setup.py.
"""
