"""Experiments: a fair schedule of measurements, what counts of them, and what they show. Data in, data out."""
