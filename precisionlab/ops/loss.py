"""Losses and their gradients.

A loss that is reduced sums its terms: S = the reduction of the terms' absolute values (or of the parts that cancel in them),
n = terms. Source: Higham 2002, (4.4), on the definitions in torch's documentation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.local import named, on_absolute
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten

_NONE, _MEAN = 0, 1


def _reduced(terms: Tensor, reduction: int) -> Tensor:
    return terms if reduction == _NONE else terms.mean() if reduction == _MEAN else terms.sum()


def _terms(func: Any, given: Any) -> Tensor:
    """The loss before its reduction."""
    overload = func.overloadpacket.default
    terms: Tensor = overload(**{a.name: given[a.name] for a in overload._schema.arguments} | {"reduction": _NONE})
    return terms


def _count(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    given = named(func, args, kwargs)
    return 1 if given.get("reduction") == _NONE else max(1, given["self"].numel())


@op_rule(*optional_ops(aten, "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"), family=Family.LOSS)
class DistanceLoss:
    """All terms are positive and the difference is one rounding: S = reduced |terms| = |y|, n = terms.

    R = 2 u |y|: the CPU kernels round the difference and each term to the storage dtype. Source: module; measured.
    """

    length = staticmethod(_count)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return y.abs()

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return 2 * u * y.abs()


@op_rule(*optional_ops(aten, "soft_margin_loss"), family=Family.LOSS)
class SoftMarginLoss:
    """log(1 + exp(-t x)), composed of storage-rounded kernels. S = reduced |terms| + 1 (the 1 inside the logarithm), n = terms.

    R = u (|y| + reduced sigmoid(-t x) (2 + |x|)): one rounding each of the exponent, its exponential, the sum and the logarithm.
    Source: module; SoftMarginLoss in torch/aten/native/Loss.cpp.
    """

    length = staticmethod(_count)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        return _reduced(_terms(func, given).abs() + 1.0, given["reduction"])

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        given = named(func, args, kwargs)
        z = -given["self"] * given["target"]
        return u * (y.abs() + _reduced(torch.sigmoid(z) * (2.0 + z.abs()), given["reduction"]))


@op_rule(*optional_ops(aten, "binary_cross_entropy"), family=Family.LOSS)
class BinaryCrossEntropy:
    """S = reduced w (|t log x| + |1 - t| (|log(1 - x)| + 1)): 1 - x rounds on the scale of 1; n = terms.

    R = 2 u |y|: the logarithms, products and terms are each stored. Source: module; measured.
    """

    length = staticmethod(_count)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, t = given["self"], given["target"]
        lowest = torch.tensor(-100.0, dtype=x.dtype, device=x.device)
        terms = (t * torch.maximum(x.log(), lowest)).abs() + (1 - t).abs() * (torch.maximum(torch.log1p(-x), lowest).abs() + 1.0)
        if given["weight"] is not None:
            terms = terms * given["weight"].abs()
        return _reduced(terms, given["reduction"])

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return 2 * u * y.abs()


@op_rule(*optional_ops(aten, "binary_cross_entropy_with_logits"), family=Family.LOSS)
class BinaryCrossEntropyWithLogits:
    """(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)): S = reduced w (|1 - t| |x| + |1 + (p - 1) t| (|x| + 1)), n = terms.

    R = 2 u S: composed of kernels that store each product in the storage dtype. Source: module; binary_cross_entropy_with_logits in
    torch/aten/native/Loss.cpp.
    """

    length = staticmethod(_count)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, t = given["self"], given["target"]
        factor = 1.0 if given["pos_weight"] is None else (1 + (given["pos_weight"] - 1) * t).abs()
        terms = (1 - t).abs() * x.abs() + factor * (torch.nn.functional.softplus(-x) + torch.relu(-x))
        if given["weight"] is not None:
            terms = terms * given["weight"].abs()
        return _reduced(terms, given["reduction"])

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return 2 * u * BinaryCrossEntropyWithLogits.condition(func, args, kwargs, y)


@op_rule(*optional_ops(aten, "kl_div"), family=Family.LOSS)
class KullbackLeibler:
    """S = reduced t (|log t| + |x|), n = terms; R = u S, both products being stored (whole only under inference_mode). Source: module."""

    length = staticmethod(_count)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x, t = given["self"], given["target"]
        terms = t.exp() * (t.abs() + x.abs()) if given["log_target"] else torch.xlogy(t, t).abs() + (t * x).abs()
        return _reduced(terms, given["reduction"])

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return 2 * u * KullbackLeibler.condition(func, args, kwargs, y)


@op_rule(*optional_ops(aten, "nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d", "nll_loss_nd"), family=Family.LOSS)
class NegativeLogLikelihood:
    """S = reduced w |log p|, n = targets; S of the total weight is itself. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        scale = on_absolute(func, args, kwargs)
        return tuple(s.abs() for s in scale) if isinstance(scale, (list, tuple)) else scale.abs()

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        given = named(func, args, kwargs)
        return 1 if given["reduction"] == _NONE else max(1, given["target"].numel())


@op_rule(*optional_ops(aten, "cross_entropy_loss"), family=Family.LOSS)
class CrossEntropy:
    """Whole only under inference_mode: log_softmax stored, then the mean. S = |y| + max |x| + 1, n = classes times targets, R = u |y|.

    Source: module; Blanchard, Higham & Higham 2021, theorem 3.2.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x = given["self"].abs()
        rows = max(1, x.numel() // max(1, x.shape[1 if x.dim() > 1 else 0]))
        return y.abs() + (1.0 + x.max()) * (rows if given["reduction"] == 2 else 1)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["self"].numel()))

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return u * y.abs()


def _margin_scale(x: Tensor, margin: float, power: int) -> Tensor:
    """Per sample: the largest that margin - x_t + x_i can be made of."""
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    scale = (margin + 2 * rows.abs().amax(1)) ** power
    return scale if x.dim() > 1 else scale.reshape(())


@op_rule(*optional_ops(aten, "multi_margin_loss"), family=Family.LOSS)
class MultiMarginLoss:
    """max(0, margin - x_t + x_i)^p over classes: S = (margin + 2 max |x|)^p a sample, n = classes (times samples). Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        scale = _margin_scale(given["self"], abs(given["margin"]), int(given["p"]))
        scale = scale * given["weight"].abs().max() if given["weight"] is not None else scale
        return _reduced(scale, given["reduction"])

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["self"].numel()))


@op_rule(*optional_ops(aten, "multilabel_margin_loss_forward", "multilabel_margin_loss"), family=Family.LOSS)
class MultilabelMarginLoss:
    """Pairs of a target and a class: S = classes (1 + 2 max |x|) a sample, n = elements. The target mask is exact. Source: module."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x = given["self"]
        scale = _reduced(_margin_scale(x, 1.0, 1) * (x.shape[-1] if x.dim() else 1), given["reduction"])
        return scale if isinstance(y, Tensor) else (scale, y[1].abs())

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["self"].numel()))


_POINTWISE = (
    "mse_loss_backward",
    "smooth_l1_loss_backward",
    "huber_loss_backward",
    "binary_cross_entropy_backward",
    "nll_loss_backward",
    "nll_loss2d_backward",
)


@op_rule(*optional_ops(aten, *_POINTWISE), family=Family.LOSS)
class LossGradient:
    """A few relative roundings an element and no sum: S = |y|, n = 4. R = 4 u |y|: on the CPU each of them is to the storage dtype.

    Source: Higham 2002, lemma 3.1; torch/aten/native/cpu/PointwiseOpsKernel.cpp, measured.
    """

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return 4

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        return 4 * u * y.abs()


@op_rule(*optional_ops(aten, "soft_margin_loss_backward"), family=Family.LOSS)
class SoftMarginLossGradient:
    """-t g z / (z + 1) with z = exp(-t x), composed of storage-rounded kernels: R = u |y| (4 + |x|). Source: torch/aten/native/Loss.cpp."""

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> Any:
        given = named(func, args, kwargs)
        return u * y.abs() * (4.0 + (given["self"] * given["target"]).abs())


@op_rule(*optional_ops(aten, "multi_margin_loss_backward", "multilabel_margin_loss_backward"), family=Family.LOSS)
class MarginLossGradient:
    """The target's element sums all classes of one sign: S = |y| + |g|, n = classes. Source: Higham 2002, (4.4)."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return y.abs() + y.abs().amax()

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return max(1, y.shape[-1]) if y.dim() else 1


@op_rule(*optional_ops(aten, "_ctc_loss"), family=Family.LOSS)
class ConnectionistLoss:
    """A chain of log-sum-exps: S = |y| + time steps, n = time steps; log_alpha is partly uninitialised and not judged.

    Source: Blanchard, Higham & Higham 2021, theorem 3.2, per step.
    """

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        steps = named(func, args, kwargs)["log_probs"].shape[0]
        return y[0].abs() + steps, None

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["log_probs"].shape[0]))


@op_rule(*optional_ops(aten, "_ctc_loss_backward"), family=Family.LOSS)
class ConnectionistLossGradient:
    """p - exp(alpha + beta - nll): S = |g| (p + |y|) (1 + |nll|), n = time steps. Source: Graves et al. 2006, (16), term by term."""

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        loss = torch.nan_to_num(given["neg_log_likelihood"].abs(), posinf=0.0).reshape(1, -1, 1)
        grad = given["grad"].abs().reshape(1, -1, 1)
        lp = given["log_probs"]
        lp = lp.unsqueeze(1) if lp.dim() == 2 else lp
        return ((grad * lp.exp() + y.abs().reshape(lp.shape)) * (1.0 + loss)).reshape(y.shape)

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        return int(max(1, named(func, args, kwargs)["log_probs"].shape[0]))
