"""Replay: the real tuner against recorded or published numbers, and what its choices would have cost.

Pure but for reading files: no clock, no client; randomness comes from a seed. The same input gives the same output.
"""
