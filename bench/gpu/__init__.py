"""One run on a machine with a GPU: are the Triton kernels right, and how fast are they and whole models?

`python -m bench.gpu --help`. Each section runs in a process of its own or in one that it shares with others; a
section that fails, hangs or breaks its device costs its own figures only.

Reading order: sections.py (the list), __main__.py (the command), supervisor.py (runs sections in processes, with
limits), worker.py (such a process), results.py (figures, the table and the JSON file). Sections use timing.py,
shapes.py (models) and engines.py (an engine that is driven step by step). They are in checks/ and timings/.
"""
