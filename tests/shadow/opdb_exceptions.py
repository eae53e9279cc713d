"""What op_db has that the audit cannot be held to, each with its reason. Printed into docs/coverage.md (``bench/coverage.py``)."""

from __future__ import annotations

_MEMORY = "returns memory without a value: whatever lay there before"
_DRAWN = "draws random numbers: the twin takes the program's, which are another draw than that of an fp64 program"
_CHOICE = "uses a choice of the program (an index, a mask, an order); operands that only fp64 tells apart are chosen otherwise there"
_CAST = "a cast: the op in fp64 rounds, the twin by definition does not"
_FORMAT = "defined on the bits of a format: the twin takes the program's value"
_SPARSE = "sparse tensors have no strided storage: the twin restarts from the program's value, and is counted"

NOT_REPEATABLE: dict[str, str] = dict.fromkeys(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"), _MEMORY
)
"""Ops whose bits differ between two runs without an audit."""

_RANDOM = (
    "bernoulli cauchy exponential log_normal normal normal.in_place normal.number_mean rand_like randn randn_like uniform "
    "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.rrelu"
)
_CANCELLING = "the gradient of a correlation of 1 is exactly 0: what is left is rounding (6e-16), on both sides"
_EPSILON = "with eps=None the program adds the epsilon of its own format, and so does the twin; the op in fp64 adds fp64's"

NOT_FAITHFUL: dict[str, str] = {
    **NOT_REPEATABLE,
    **dict.fromkeys(_RANDOM.split(), _DRAWN),
    **dict.fromkeys(("bfloat16", "half", "float", "cfloat", "chalf"), _CAST),
    **dict.fromkeys(("nextafter", "frexp"), _FORMAT),
    "corrcoef[2]": _CANCELLING,
    **dict.fromkeys((f"nn.functional.rms_norm[{i}]" for i in (2, 3, 5)), _EPSILON),
    "sparse.mm.reduce": _SPARSE,
}
"""Ops, or single samples of an op, whose twins are not what the op computes in fp64."""

DECISIONS: dict[str, str] = dict.fromkeys(
    ("mode", "msort", "sort", "topk", "nn.functional.cosine_embedding_loss", "nn.functional.hinge_embedding_loss"), _CHOICE
)
"""Ops whose twins follow the program where the fp64 side would decide otherwise (ties of small integers)."""

UNSHADOWED: dict[str, str] = dict.fromkeys(
    ("aten.clone", "aten._sparse_mm_reduce_impl", "aten._sparse_mm_reduce_impl_backward", "aten._to_sparse"), _SPARSE
)
"""ATen ops that some sample runs on tensors that cannot have a twin."""

DEFAULT_RULE: dict[str, str] = dict.fromkeys(
    ("torch_nn._linear_cross_entropy_batch_chunked", "torch_nn._linear_cross_entropy_batch_chunked_no_reduction"),
    "a Python custom op of torch.nn, registered at its first use: run again as its schema says",
)
