"""A load beside an engine: `vllm bench serve` at each load of an experiment, and what came of it as lines of facts.

`python3 -m paceline_engine.trial` runs it in the engine's pod. The operator and its command line share the facts.
"""
