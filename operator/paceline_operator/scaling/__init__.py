"""Replicas: k is lowered before GPUs are bought. Pure."""
