"""Ops that move or make numbers without arithmetic: views, copies, factories, random draws, casts, selections, comparisons.

Their rules say how the twin comes about (``How``); none of them rounds, except the casts.
"""

from __future__ import annotations

import torch

from precisionlab.ops.registry import Family, How, OpRule, add_rule, optional_ops

aten = torch.ops.aten


def _register(names: str, family: Family, how: How, note: str = "") -> None:
    for packet in optional_ops(aten, *names.split()):
        add_rule(packet, OpRule(family, how, note=note))


_register(
    "view _unsafe_view reshape _reshape_alias alias detach detach_ expand expand_as permute transpose transpose_ t t_ numpy_T squeeze "
    "squeeze_ unsqueeze unsqueeze_ select slice narrow split split_with_sizes unsafe_split unsafe_split_with_sizes unsafe_chunk chunk "
    "unbind diagonal as_strided as_strided_ unfold movedim swapaxes swapdims view_as view_as_real view_as_complex _conj _neg_view "
    "conj real imag lift_fresh lift positive flatten unflatten ravel adjoint mT mH matrix_H tensor_split hsplit vsplit dsplit "
    "resolve_conj resolve_neg contiguous requires_grad_ values indices",
    Family.VIEW,
    How.VIEW,
    "shares storage with its operand; the twin of the storage serves every view",
)
_register(
    "clone copy copy_ _to_copy to cat stack concat hstack vstack dstack repeat tile repeat_interleave roll flip rot90 index "
    "index_select gather take take_along_dim masked_select masked_scatter index_copy index_fill index_put scatter select_scatter "
    "slice_scatter diagonal_scatter as_strided_scatter constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d tril triu diag diag_embed slice_backward select_backward embedding "
    "_embedding unfold_copy as_strided_copy view_copy expand_copy permute_copy transpose_copy slice_copy select_copy squeeze_copy "
    "unsqueeze_copy split_copy split_with_sizes_copy unbind_copy detach_copy alias_copy t_copy narrow_copy channel_shuffle "
    "pixel_shuffle pixel_unshuffle im2col block_diag meshgrid atleast_1d atleast_2d atleast_3d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _pin_memory swap real_copy "
    "view_as_real_copy view_as_complex_copy diagonal_copy complex _unsafe_masked_index _chunk_cat",
    Family.COPY,
    How.RERUN,
)
_register(
    "empty empty_like empty_strided new_empty new_empty_strided empty_permuted empty_quantized",
    Family.FACTORY,
    How.UNINITIALISED,
    "memory without a value yet; its twin starts with the first write",
)
_register(
    "zeros ones zeros_like ones_like new_zeros new_ones eye zero zero_ _efficientzerotensor",
    Family.FACTORY,
    How.REAL,
    "0 and 1 are exact in every format",
)
_register(
    "full full_like new_full fill fill_ arange linspace logspace scalar_tensor range tril_indices triu_indices bartlett_window "
    "blackman_window hamming_window hann_window kaiser_window vander",
    Family.FACTORY,
    How.RERUN,
)
_register(
    "rand rand_like randn randn_like randint randint_like randperm normal normal_ normal_functional uniform uniform_ bernoulli "
    "bernoulli_ exponential exponential_ geometric geometric_ cauchy cauchy_ log_normal log_normal_ random random_ multinomial "
    "poisson binomial _standard_gamma _sample_dirichlet rrelu_with_noise rrelu_with_noise_ _fused_dropout fractional_max_pool2d "
    "fractional_max_pool3d native_dropout dropout alpha_dropout feature_dropout feature_alpha_dropout rrelu",
    Family.RANDOM,
    How.REAL,
    "drawn once: the twin takes the program's random numbers",
)
_register(
    "max min aminmax sort topk kthvalue mode median nanmedian cummax cummin msort max_pool1d_with_indices max_pool2d_with_indices "
    "max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d unique_dim _unique2 unique_consecutive",
    Family.SELECTION,
    How.SELECT,
    "the program's choice holds; the twin's values are taken at the same places",
)
_register(
    "eq ne lt le gt ge isnan isinf isfinite isposinf isneginf signbit argmax argmin argsort any all equal isclose allclose nonzero "
    "searchsorted bucketize logical_and logical_or logical_xor logical_not is_nonzero count_nonzero bitwise_and bitwise_or "
    "bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ isin isreal "
    "nonzero_static hash_tensor",
    Family.COMPARISON,
    How.DECIDE,
    "the program's decision holds; the twin's own is compared with it",
)
_register("histc histogram native_dropout_backward _embedding_bag_backward _standard_gamma_grad _dirichlet_grad", Family.OTHER, How.RERUN)
_register("_local_scalar_dense item", Family.SCALAR, How.READ, "a number read into Python follows the program")
_register(
    "set_ resize_ resize_as_ _resize_output_ record_stream _assert_async _assert_tensor_metadata is_pinned sym_size sym_stride "
    "sym_numel sym_storage_offset is_same_size size stride dim numel _nested_tensor_size",
    Family.OTHER,
    How.VIEW,
    "changes or reads metadata only",
)
_register(
    "quantize_per_tensor quantize_per_channel dequantize fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask "
    "fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask",
    Family.OTHER,
    How.REAL,
    "written for one format: the twin takes the program's value",
)
