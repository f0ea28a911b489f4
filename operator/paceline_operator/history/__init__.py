"""Hours of load in a few numbers, or the reason why there are none. Pure."""

from __future__ import annotations

from paceline_operator.history.load import Absence, Distribution, Load, Source, distribution

__all__ = ["Absence", "Distribution", "Load", "Source", "distribution"]
