"""`kvasir up` and `kvasir serve`: the pods of InferenceServices as processes of this machine.

Reading order: run.py, prepare.py, place.py, pods.py, process_specs.py, check_model.py, gpus.py,
private_directory.py; then manifests/ (what to run) and supervision/ (running it).
"""
