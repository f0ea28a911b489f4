"""The tuner: measured step cost x measured acceptance -> the k with the best goodput at every load.

Pure: data in, decision out. No clock, no client, no randomness.
"""
