"""Profiles: what one engine configuration was learnt to cost and to accept, told, kept, compared and started from."""
