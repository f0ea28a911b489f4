"""Is this object one that can be acted on? Pure: the raw object in, a parsed one and the Accepted verdict out.

The API server has checked schema and CEL already, but a stored object may be older than either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight import legality
from paceline_operator.verdicts import Verdict

_SHOWN = 3


def accept(raw: Mapping[str, Any]) -> tuple[SpeculativeServing | None, Verdict]:
    """The parsed object, None where it is refused; the verdict names the field. Status is not looked at."""
    try:
        serving = SpeculativeServing.model_validate({key: value for key, value in raw.items() if key != "status"})
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        texts = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details]
        return None, _refused(Reason.INVALID_SPEC, texts)
    findings = legality.check(serving.spec)
    if findings:
        return None, _refused(findings[0].reason, [finding.message for finding in findings])
    return serving, Verdict(ConditionType.ACCEPTED, True, Reason.VALID, "The spec is valid")


def _refused(reason: Reason, texts: list[str]) -> Verdict:
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return Verdict(ConditionType.ACCEPTED, False, reason, "; ".join([*texts[:_SHOWN], *more]))
