"""Replacing pods: what changed, whether it may roll now, whether the canary is good, what a restart would bring. Pure."""
