"""Preflight: whether models, machine and memory can carry a serving, said before any large download.

`python3 -m paceline_engine.preflight` runs it where an engine will run; the operator's command line runs the part about
models. Checks are pure: facts in, checks out. Only `gather`, `machine` and `tiny` read or run anything.
"""
