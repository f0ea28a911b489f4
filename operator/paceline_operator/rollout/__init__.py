"""Replacing pods: what changed, may it roll now, is the canary good, what would a restart bring. Pure."""
