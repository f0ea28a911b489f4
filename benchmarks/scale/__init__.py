"""`make bench-scale N=1000`: one operator and N servings of three engines each on a real API server (docs/scale.md)."""
