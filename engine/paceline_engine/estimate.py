"""vLLM's running estimate of survival, begun anew when it is no number any more (NaN).

The estimator (vLLM 0.32 and 0.33: v1/worker/gpu/spec_decode/acceptance_estimator.py) refits itself by a division that
rounding can make one by nothing, and never comes back by itself: predictions that are no numbers are its next samples.
Its manager then verifies a single draft of a whole batch in every step, whatever its costs are: the first position that
is no number is numpy's maximum. Seen on an H200 with draft weights that have nothing to be confident of.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger("vllm.paceline")
REST_STEPS = 200
"""Two refits of vLLM's estimator: a draft model whose own logits are no numbers is not worth more of these."""
SUMS = ("info", "grad", "counts")
"""Of a round between two refits."""


class Estimate:
    """One rank's estimate: whether a step can be decided by it."""

    def __init__(self, manager: Any, estimator: Any) -> None:
        """Before the first request. `estimator` None, or of another shape: it stays as it is, and all is verified."""
        self._manager = manager
        self._estimator = estimator
        self._rest = 0
        try:
            self._start = estimator.slope.clone(), estimator.intercepts.clone()
        except AttributeError:
            self._estimator = None

    def lost(self, requests: Iterable[str]) -> bool:
        """Whether a confidence of these requests, as the host has them for this step, is no number.

        Then such ones are 1 for this step, as those of a new request, and the estimator begins where it began.
        """
        import numpy as np

        self._rest -= self._rest > 0
        try:
            told = self._manager._stale_confidences[self._manager._stale_idx].np
            odd = np.isnan(told)
            if not odd.any():
                return False
            slots = [self._manager.req_states.req_id_to_index[name] for name in requests]
        except (AttributeError, KeyError, TypeError):  # another shape: nothing is known
            return False
        if not odd[slots].any():
            return False
        told[odd] = 1.0
        if not self._rest:
            self._rest = REST_STEPS
            self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        log.warning(
            "Paceline: vLLM's estimate of which drafts survive is no number any more; it begins anew, and all drafts "
            "are verified meanwhile"
        )
        one = self._estimator
        if one is None:
            return
        import torch

        with torch.inference_mode():  # its tensors were made in it
            one.slope.copy_(self._start[0])
            one.intercepts.copy_(self._start[1])
            for name in SUMS:
                if (sums := getattr(one, name, None)) is not None:
                    sums.zero_()
            for samples, known in (("features", 0.0), ("predictions", 0.5)):
                if (kept := getattr(one, samples, None)) is not None:
                    torch.nan_to_num(kept, nan=known, out=kept)
