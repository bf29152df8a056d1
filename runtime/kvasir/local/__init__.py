"""`kvasir up` and `kvasir serve`: the pods of InferenceServices as processes of this machine.

In reading order: manifest.py (what to run, checked by schema.py and rules.py), place.py (its addresses here),
pods.py and specs.py (containers become ProcessSpecs), run.py, supervisor.py and keeper.py (keep them running, with
child.py and prober.py), screen.py (show it).
"""
