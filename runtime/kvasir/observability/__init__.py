"""What every process reports and sets of itself: failures, probes, progress bars, the environment, its title.

Reading order: failures.py, ops_server.py, progress.py, seldom_log.py, environment_report.py,
process_title.py, open_files.py.
"""
