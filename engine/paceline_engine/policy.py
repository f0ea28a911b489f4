"""Which k each step drafts: the boot schedule until a policy is pushed, then its table with dwell and probe bursts.

Read by the engine's step loop, so: constant time, no lock, nothing that grows, and no index or value outside what the
engine booted with. The control thread swaps one reference; everything else belongs to the step loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from sys import maxsize

from paceline_engine.protocol import Policy, Probe, Verification

MAX_BURST_LENGTHS = 4
"""A burst whose steps do not count (prompts among them, stalls) goes on until enough have, but no longer than this many
times its length. What it took too much is waited for afterwards, so the share of probing stays what was asked."""


class Phase(Enum):
    """Why a step drafts its k."""

    TABLE = "table"
    SETTLING = "settling"
    """First steps of a probe burst: the pipeline still holds drafts of another k."""
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy as the step loop reads it: never changed, swapped whole."""

    table: tuple[int, ...]
    """k by sampling requests; length max_num_seqs + 1."""
    policy: Policy | None = None
    """What was pushed; None for the boot schedule."""
    dwell: int = 1
    probe: Probe | None = None

    @property
    def generation(self) -> int:
        """0 for the boot schedule."""
        return self.policy.generation if self.policy else 0


class LivePolicy:
    """Stands where the scheduler keeps its `batch size -> k` list, and chooses the k of each step.

    As long as there are `calm_steps`, the plan stays the same and its table gives the k in force for the sampling
    requests, all that `choose` would do is to count the step. So the step loop may `arm` that many steps and take one
    from `left` instead of asking; before it asks again it has them settled.
    """

    __slots__ = (
        "_armed",
        "_burst_k",
        "_burst_lost",
        "_burst_step",
        "_debt",
        "_held",
        "_kept",
        "_next_probe",
        "_since_burst",
        "_steps_by_k",
        "_streak",
        "_wanted",
        "adopted",
        "boot",
        "calm_steps",
        "k_in_force",
        "left",
        "max_k",
        "plan",
        "probe_steps_by_k",
        "verification",
    )

    def __init__(self, boot: Sequence[int], max_k: int) -> None:
        """Start with the table `boot` (max_num_seqs + 1 entries); no k above `max_k` is ever answered."""
        self.max_k = max_k
        self.boot = tuple(min(max(int(k), 0), max_k) for k in boot)
        self.plan = Plan(self.boot)
        self.verification = Verification.ALL
        """How drafts are verified now; set by whoever changes it."""
        self.k_in_force: int | None = None
        self._steps_by_k = [0] * (max_k + 1)
        self.probe_steps_by_k = [0] * (max_k + 1)
        self.adopted = self.plan
        """The plan of the last step that asked."""
        self.left = 0
        """Armed steps that are left."""
        self._armed: tuple[int, list[int]] | None = None
        """How many were, and steps by k before them."""
        self._held: int | None = None
        """Table k in force, whether or not a burst covers it; None: take the next wanted k at once."""
        self._wanted = 0
        self._streak = 0
        self._since_burst = 0
        """Steps since the last burst, or since there is no probe."""
        self._kept = 0
        """The same, put by while there is no probe."""
        self.calm_steps = 0
        """Steps that may be armed now."""
        self._burst_step = 0
        """Steps of the running burst so far; 0 = none runs."""
        self._burst_lost = 0
        """Steps of the running burst that did not count."""
        self._burst_k = 0
        self._debt = 0
        """Steps that the last burst took more than its length: waited for before the next."""
        self._next_probe = 0

    def __len__(self) -> int:
        return len(self.boot)

    def __getitem__(self, scheduled: int) -> int:
        """What the engine's own list would answer for `scheduled` requests, prefill chunks included."""
        return self.boot[min(max(scheduled, 0), len(self.boot) - 1)]

    @property
    def taken(self) -> bool:
        """Whether a step has used the present plan."""
        return self.adopted is self.plan

    @property
    def armed(self) -> bool:
        """Whether there are steps to settle."""
        return self._armed is not None

    @property
    def steps_by_k(self) -> list[int]:
        """Steps that drafted by the table so far. For any thread: what it is told never falls."""
        while True:
            armed = self._armed
            if armed is None:
                return list(self._steps_by_k)
            first, counts = armed
            counts = list(counts)
            counts[self.k_in_force or 0] += first - self.left
            if armed is self._armed:
                return counts

    def arm(self, steps: int) -> None:
        """Let the next `steps` <= `calm_steps` steps do with the k in force, without asking. After `choose` alone."""
        self.left = steps
        self._armed = steps, list(self._steps_by_k)

    def settle(self) -> int:
        """Count the steps that did not ask; how many there were. Before anything else that is done to the policy."""
        if self._armed is None:
            return 0
        taken = self._armed[0] - self.left
        self._since_burst += taken
        self._steps_by_k[self.k_in_force or 0] += taken
        self._armed = None  # not before: whoever reads meanwhile is told what was armed
        self.left = 0
        return taken

    def swap(self, policy: Policy) -> None:
        """Put a policy in force from the next step on. The caller has checked it against this engine."""
        self.plan = Plan(policy.table, policy, policy.dwell_steps, policy.probe)

    def restore(self) -> None:
        """Go back to the boot schedule."""
        self.plan = Plan(self.boot)

    def choose(self, scheduled: int, sampling: int) -> tuple[int, Phase]:
        """The k to draft in this step, in which `sampling` (>= 1) of the `scheduled` requests will get a token."""
        plan = self.plan
        if plan is not self.adopted:
            self._adopt(plan)
        if plan.policy is None:
            k, phase = self[scheduled], Phase.TABLE
            calm = maxsize
        else:
            wanted = plan.table[min(sampling, len(plan.table) - 1)]
            k, phase = self._burst(plan.probe, self._follow(wanted, plan.dwell))
            k = min(k, self.max_k)
            calm = 0 if self._streak or phase is not Phase.TABLE else self._quiet(plan.probe) - self._since_burst
        self.calm_steps = calm
        (self._steps_by_k if phase is Phase.TABLE else self.probe_steps_by_k)[k] += 1
        self.k_in_force = k
        return k, phase

    def observe(self, k: int) -> None:
        """Count a step whose k the engine chose by itself."""
        self.k_in_force = k
        self._steps_by_k[min(k, self.max_k)] += 1

    def lost(self) -> None:
        """A step of the running burst did not count: make up for it."""
        self._burst_lost += 1

    def _adopt(self, plan: Plan) -> None:
        """A push takes effect at once: dwell is for changes of load. A burst ends unless the new plan probes alike."""
        if plan.probe != self.adopted.probe:
            self._end_burst(self.adopted.probe)
            if plan.probe is None:
                self._kept = self._since_burst
            elif self.adopted.probe is None:
                self._since_burst = self._kept
        self.adopted = plan
        self._held = None

    def _follow(self, wanted: int, dwell: int) -> int:
        """The table k after hysteresis: left when `dwell` steps in a row want a k on the same side of it.

        Of the ks wanted in those steps the nearest is taken, so that a load between two buckets still moves.
        """
        held = self._held
        if held is None or wanted == held:
            self._held = wanted
            self._streak = 0
            return wanted
        if self._streak and (wanted > held) == (self._wanted > held):
            self._streak += 1
            self._wanted = min(self._wanted, wanted) if wanted > held else max(self._wanted, wanted)
        else:
            self._streak = 1
            self._wanted = wanted
        if self._streak >= dwell:
            self._held = held = self._wanted
            self._streak = 0
        return held

    def _burst(self, probe: Probe | None, table_k: int) -> tuple[int, Phase]:
        """A burst takes the last settle_steps + burst_steps of every interval_steps, the ks of the probe in turn."""
        if probe is None:
            return table_k, Phase.TABLE
        length = probe.settle_steps + probe.burst_steps
        if self._burst_step >= length + min(self._burst_lost, (MAX_BURST_LENGTHS - 1) * length):
            self._end_burst(probe)
        if not self._burst_step:
            self._burst_lost = 0
            self._since_burst += 1
            if self._since_burst <= self._quiet(probe):
                return table_k, Phase.TABLE
            self._since_burst = self._debt = 0
            other = self._turn(probe.ks, table_k)
            if other is None:
                return table_k, Phase.TABLE
            self._burst_k = other
        self._burst_step += 1
        return self._burst_k, Phase.SETTLING if self._burst_step <= probe.settle_steps else Phase.PROBE

    def _end_burst(self, probe: Probe | None) -> None:
        """The burst that runs, if one does, is over: what it took more than its length is owed, whatever comes next."""
        if probe and self._burst_step:
            self._debt = max(0, self._burst_step - probe.settle_steps - probe.burst_steps)
        self._burst_step = self._burst_lost = 0

    def _quiet(self, probe: Probe | None) -> int:
        """Steps between two bursts."""
        if probe is None:
            return maxsize
        length = probe.settle_steps + probe.burst_steps
        return -(-(probe.interval_steps - length) * (length + self._debt) // length)

    def _turn(self, ks: tuple[int, ...], table_k: int) -> int | None:
        """The next k in turn that the table does not draft anyway; None if there is none."""
        for _ in ks:
            k = ks[self._next_probe % len(ks)]
            self._next_probe += 1
            if k != table_k:
                return k
        return None
