"""The facts that operator, runtime and `kvasir up` share, each written once. Only the standard library is imported.

Reading order: `api`, `phases`, `reasons`, `failure`, `exits`, `status_report`, `endpoints`, `environment`, `units`,
`logs`, `process_basics`, `extras`.
"""
