"""Which idiom an op belongs to, for advice: in-place, ``_foreach`` and backward overloads read like the plain op."""

from __future__ import annotations

from precisionlab.checks.base import Fault
from precisionlab.checks.facts import op_stem

_MEMBERS: dict[str, tuple[str, ...]] = {
    "product": ("mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "linear", "dot", "mv", "addmv", "einsum", "inner", "outer", "addr"),
    "convolution": ("convolution", "slow_conv2d", "conv1d", "conv2d", "conv3d"),
    "sum": ("sum", "nansum", "mean", "cumsum", "var", "std", "var_mean", "std_mean", "trace", "avg_pool2d", "adaptive_avg_pool2d"),
    "norm": ("norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "frobenius_norm", "dist", "cdist", "clip_grad_norm"),
    "scatter": ("index_add", "index_put", "index_reduce", "scatter_add", "scatter_reduce", "embedding_dense_backward", "embedding_bag"),
    "exponential": ("exp", "exp2", "expm1", "sinh", "cosh", "softplus"),
    "softmax": ("softmax", "log_softmax", "safe_softmax", "logsumexp", "logcumsumexp"),
    "power": ("pow", "square", "float_power"),
    "collective": ("allreduce", "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "allreduce_coalesced"),
}
_FAMILY = {stem: name for name, stems in _MEMBERS.items() for stem in stems}

_FRAGMENTS: tuple[tuple[str, str], ...] = (
    ("scaled_dot_product", "attention"),
    ("attention", "attention"),
    ("layer_norm", "normalisation"),
    ("batch_norm", "normalisation"),
    ("group_norm", "normalisation"),
    ("rms_norm", "normalisation"),
    ("instance_norm", "normalisation"),
    ("fft", "transform"),
    ("conv", "convolution"),
)


def family(fault: Fault) -> str:
    """The idiom of the op that raised the root event: ``product``, ``sum``, ``exponential``, ...; empty when it has none."""
    return family_of(op_stem(fault))


def family_of(stem: str) -> str:
    """The idiom of an op stem. The backward of ``table[index]`` scatters; other backward ops belong to their forward op."""
    if stem in _FAMILY:
        return _FAMILY[stem]
    plain = stem.removesuffix("_data").removesuffix("_backward")
    if plain == "index" and plain != stem:
        return "scatter"
    if plain in _FAMILY:
        return _FAMILY[plain]
    return next((name for fragment, name in _FRAGMENTS if fragment in plain), "")
