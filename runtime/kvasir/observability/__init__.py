"""What every process reports: failures, probes, progress bars, the environment.

Reading order: failures.py, ops_server.py, progress.py, environment_report.py.
"""
