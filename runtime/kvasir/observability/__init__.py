"""What every process reports: failures, probes, progress bars, the environment.

Reading order: failures.py, ops_server.py, progress.py, seldom_log.py, environment_report.py.
"""
