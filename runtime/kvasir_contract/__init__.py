"""The facts that operator, runtime and `kvasir up` share, each written once.

This package imports only the standard library.

Reading order:
    `api`                the resource and its labels
    `phases`, `reasons`  the values of a status
    `failure`, `exits`   how a process reports its failure and exits
    `status_report`      the body of GET /status
    `endpoints`          ports, paths and probes
    `environment`        environment variables, key files and directories
    `units`              sizes and durations
    `logs`               the format of log lines
    `process_basics`     what each command sets right in its process first
    `extras`             the distribution's name, and how to install its extras
"""
