"""Status of a SpeculationExperiment: how far it is, what was shown, and what is missing.

It can be lost: the record of what was measured is in ConfigMaps, and status is made from them anew.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paceline_operator.api.base import ApiModel
from paceline_operator.api.conditions import Conditions

MAX_VERDICTS, MAX_MISSING, LONGEST_TEXT = 288, 64, 1024


class Phase(StrEnum):
    """Of an experiment."""

    PENDING = "Pending"
    """Nothing runs yet; the condition Complete says what it waits for."""
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    """Every engine had its turn. What failed is missing."""
    OUT_OF_BUDGET = "OutOfBudget"
    CANCELLED = "Cancelled"
    FAILED = "Failed"
    """Every engine had its turn, and nothing was measured; or it cannot be run."""


ENDED = (Phase.COMPLETED, Phase.OUT_OF_BUDGET, Phase.CANCELLED, Phase.FAILED)


class VerdictStatus(ApiModel):
    """One variant against the baseline at one load, as `paceline experiment report` judges it."""

    variant: str = Field(description="Its name.")
    concurrency: int = Field(description="Requests in flight.")
    throughput: str = Field(default="", description="better, worse or no difference shown; empty: not compared.")
    throughput_permille: int | None = Field(default=None, description="Its tokens per second, baseline = 1000.")
    tpot: str = Field(default="", description="The same of the time per output token.")
    tpot_permille: int | None = Field(default=None, description="Its median time per output token, baseline = 1000.")
    reason: str = Field(default="", max_length=LONGEST_TEXT, description="Why no difference is shown.")


class ExperimentStatus(ApiModel):
    """How far it is, what was shown, and what is missing."""

    observed_generation: int = Field(default=0, description="Generation of the spec that this status is about.")
    conditions: Conditions = Field(default_factory=list, description="Accepted, and Complete with what it waits for.")
    phase: Phase = Field(default=Phase.PENDING, description="Where it is.")
    running: str = Field(default="", description="The variant whose engine runs, and its round.")
    windows: int = Field(default=0, description="Measurements that are there.")
    planned_windows: int = Field(default=0, description="Measurements that were planned.")
    gpu_seconds: int = Field(default=0, description="Spent by engines that ended.")
    verdicts: list[VerdictStatus] = Field(
        default_factory=list, max_length=MAX_VERDICTS, description="By variant and load, once it has ended."
    )
    winner: str = Field(default="", description="What `paceline experiment apply` brings into the serving.")
    winner_message: str = Field(default="", max_length=LONGEST_TEXT, description="Why.")
    missing: list[Annotated[str, Field(max_length=LONGEST_TEXT)]] = Field(
        default_factory=list, max_length=MAX_MISSING, description="What was asked for and not measured, and why."
    )
