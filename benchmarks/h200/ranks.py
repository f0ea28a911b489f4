"""In every worker of a tensor-parallel engine: which change came in front of which of its steps, written down there."""

from __future__ import annotations

from typing import Any

_STEPS: list[int] = []
"""k that each executed step drafts, by order: its length is the step counter of this process."""
_CHANGES: list[tuple[int, str]] = []
"""(steps before it, mode) of every change of adaptive verification."""


def watch(worker: Any) -> None:
    """Count this rank's steps and note the changes. Called once, by collective_rpc."""
    from paceline_engine.worker import Trim

    execute, apply = worker.execute_model, Trim.apply

    def counted(output: Any, *args: Any, **kwargs: Any) -> Any:
        if output.total_num_scheduled_tokens:
            k = output.num_spec_tokens_to_schedule
            _STEPS.append(-1 if k is None else int(k))
        return execute(output, *args, **kwargs)

    def noted(self: Any, policy: Any) -> Any:
        _CHANGES.append((len(_STEPS), str(policy.mode) if policy else "as booted"))
        return apply(self, policy)

    worker.execute_model = counted
    Trim.apply = noted  # type: ignore[method-assign]


def told(worker: Any) -> dict[str, Any]:
    """What this rank wrote down."""
    return {"steps": list(_STEPS), "changes": list(_CHANGES)}


def agreement(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether all ranks ran the same ks in the same steps, and changed how they verify in front of the same ones."""
    first, *others = reports
    return {
        "ranks": len(reports),
        "steps": [len(report["steps"]) for report in reports],
        "changes_of_verification": [len(report["changes"]) for report in reports],
        "changes_of_k": sum(a != b for a, b in zip(first["steps"], first["steps"][1:], strict=False)),
        "same_k_in_every_step": all(report["steps"] == first["steps"] for report in others),
        "same_step_for_every_change": all(report["changes"] == first["changes"] for report in others),
        "first_changes": [report["changes"][:5] for report in reports],
    }
