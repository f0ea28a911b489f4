"""Mistakes of whoever gives the commands."""


class UserError(Exception):
    """A mistake that the user can correct: one message, no traceback."""
