"""`kvasir chaos`: a service is disturbed under load, and each answer is compared with that of an undisturbed run.

Reading order: chaos_run.py; then settings.py, questions.py, constrained.py, answers.py and disturbances.py;
local_target.py and kubernetes_target.py (the engines that are disturbed), service_view.py (whether they have
recovered) and report.py.
"""
