"""The facts that operator, runtime and `kvasir up` share, each written once.

This package imports nothing of ours and nothing from outside the standard library. Read in this order: `api` (the
resource and its labels), `phases` and `reasons` (the words of a status), `failure` and `exits` (how a process
ends), `report` (the body of /status), `endpoints` (ports, paths, probes), `environment` (variables, key files,
directories), `units` (sizes and durations), `logs` (the format of log lines).
"""
