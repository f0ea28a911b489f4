"""Whether a spec can work, decided before anything is created: pure rules with reasons and messages."""
