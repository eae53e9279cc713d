"""Norms of gradients: a norm that its own kernel gets wrong makes every clipped step too long or too short.

Only the error that the norm's own arithmetic makes on its actual operands counts (an event of a local error above its bound): rounding
noise in the gradients hardly moves their norm. fp32 is no excuse: a sequential fp32 sum of 1e7 equal squares is off by 1 %
(Higham 2002, section 4.2: the error of recursive summation grows with n).
"""

from __future__ import annotations

from precisionlab.records import EventKind, Phase, SinkKind, Verdict
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.trackers.court import Court
from precisionlab.trackers.pairs import drift_of

_NORMS = frozenset(("norm", "linalg_vector_norm", "powsum", "sum", "dot", "_vector_norm"))


class Norms:
    """Looks at reductions over gradients."""

    def __init__(self, court: Court) -> None:
        self.court = court

    def op(self, call: OpCall, gradients: dict[int, str]) -> None:
        """``gradients``: storage of each gradient -> the name of its parameter."""
        if call.backward or call.info.stem not in _NORMS:
            return
        for pair in call.outputs:
            if not pair.twin.events or pair.lo.numel() != 1:
                continue
            if call.phase is not Phase.CLIP and not any(p.lo.untyped_storage()._cdata in gradients for p in call.inputs):
                continue
            self._judge(call, pair)

    def _judge(self, call: OpCall, pair: Pair) -> None:
        limits, log = self.court.limits, self.court.log
        site = log.site(call.module, call.info.name, call.phase, call.place)
        error = drift_of(pair)
        for event in (log.events[e] for e in pair.twin.events):
            if event.kind is not EventKind.RHO or event.site is not site or not error > limits.norm_error:
                continue
            verdict = Verdict.BROKEN if error > limits.norm_error_broken else Verdict.RISKY
            log.sink(
                SinkKind.GRADIENT,
                "the gradient norm",
                site,
                frozenset((event.id,)),
                verdict,
                f"the gradient norm is wrong by {error:.2%}, and so is every step that is clipped by it",
                {"norm_error": error, "drift": error},
            )
