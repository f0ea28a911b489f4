"""Hours of load in a few numbers, or the reason why there are none. Pure."""
