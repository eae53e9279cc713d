"""The numba kernels of the measuring pass: one read of the memory, every number at once.

Imported lazily, by the first measurement (`measure.py`). Every kernel takes raw addresses and an element count, holds no lock (`nogil`),
writes nothing, and returns a flat tuple of Python numbers, so that a call on a tiny tensor costs about a microsecond and two threads can
share a big one.

How it gets its speed:

* Memory goes by in blocks that fit the first-level cache. A cheap pass over a block (integers as narrow as the format) finds its largest
  and smallest magnitude. What only zeros, subnormals, Inf or NaN make necessary is done for blocks that hold some.
* All loops are free of branches (`_select`), so LLVM turns them into vector code. `reassoc` lets it keep several partial sums; no flag
  lets it assume away Inf or NaN.

The formats are told apart by *type* (tags), not by value: numba then compiles one plain specialisation of each helper for each format.
Zeros, subnormals, Inf and NaN are recognised in the bits, never by a floating-point comparison, so results do not change under
`torch.set_flush_denormal(True)`.
"""
# mypy: ignore-errors
# (numba types this module, and checks it when it compiles)

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# Tags: a value of the type names the format. Only the type is looked at.
FP16 = np.uint16(0)
BF16 = np.int16(0)
FP32 = np.float32(0)
FP64 = np.float64(0)
FAST = np.uint8(0)
CAREFUL = np.int8(0)

BLOCK = 1024  # elements; 1024 * (8 + 8) bytes is half a 32 KiB first-level cache
_FLAGS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}

# tag type -> (unsigned type of the bits, mantissa bits, exponent bits)
_LAYOUT = {
    types.uint16: (types.uint16, 10, 5),
    types.int16: (types.uint16, 7, 8),
    types.float32: (types.uint32, 23, 8),
    types.float64: (types.uint64, 52, 11),
}
_I64, _F64 = ir.IntType(64), ir.DoubleType()


def _constant(tag: Any, value_of: Any) -> Any:
    """Signature and code generator of a constant that depends on the format only."""
    unsigned, mantissa, exponent = _LAYOUT[tag]
    return unsigned(tag), lambda context, builder, signature, args: ir.Constant(ir.IntType(unsigned.bitwidth), value_of(mantissa, exponent))


@intrinsic
def _inf_bits(typing_context, tag):
    """Magnitude bits of Inf: everything at or above is Inf or NaN."""
    return _constant(tag, lambda mantissa, exponent: ((1 << exponent) - 1) << mantissa)


@intrinsic
def _tiny_bits(typing_context, tag):
    """Bits of the smallest normal number: everything below is zero or subnormal."""
    return _constant(tag, lambda mantissa, exponent: 1 << mantissa)


@intrinsic
def _size(typing_context, tag):
    """Bytes of an element."""
    width = _LAYOUT[tag][0].bitwidth
    return types.int64(tag), lambda context, builder, signature, args: ir.Constant(_I64, width // 8)


@intrinsic
def _load(typing_context, tag, base, index):
    """The bits of element `index` of the array at address `base`."""
    unsigned = _LAYOUT[tag][0]

    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[1], ir.IntType(unsigned.bitwidth).as_pointer())
        return builder.load(builder.gep(pointer, [args[2]]))

    return unsigned(tag, types.int64, types.int64), generate


@intrinsic
def _magnitude(typing_context, tag, bits):
    """The bits without their sign."""
    unsigned = _LAYOUT[tag][0]

    def generate(context, builder, signature, args):
        return builder.and_(args[1], ir.Constant(args[1].type, (1 << (unsigned.bitwidth - 1)) - 1))

    return unsigned(tag, unsigned), generate


def _widened(builder: Any, bits: Any, source: tuple[int, int], target: tuple[int, int]) -> Any:
    """Emit the move of a float to a wider format ((mantissa bits, exponent bits)) by integer arithmetic.

    Exact for finite numbers, unspecified for Inf and NaN. A subnormal is given an implicit one that it does not have, which is then
    subtracted: no subnormal operand ever reaches the floating-point unit.
    """
    whole = ir.IntType(1 + sum(target))
    real = _F64 if whole.width == 64 else ir.FloatType()
    from_bits, from_bias, to_bias = 1 + sum(source), (1 << (source[1] - 1)) - 1, (1 << (target[1] - 1)) - 1
    wide = builder.zext(bits, whole)
    sign = builder.shl(builder.lshr(wide, ir.Constant(whole, from_bits - 1)), ir.Constant(whole, whole.width - 1))
    body = builder.and_(wide, ir.Constant(whole, (1 << (from_bits - 1)) - 1))
    small = builder.icmp_unsigned("<", body, ir.Constant(whole, 1 << source[0]))
    body = builder.shl(body, ir.Constant(whole, target[0] - source[0]))
    normal = builder.add(body, ir.Constant(whole, (to_bias - from_bias) << target[0]))
    with_one = builder.add(body, ir.Constant(whole, (to_bias - from_bias + 1) << target[0]))
    tiny = builder.fsub(builder.bitcast(with_one, real), ir.Constant(real, 2.0 ** (1 - from_bias)))
    return builder.bitcast(builder.or_(builder.select(small, builder.bitcast(tiny, whole), normal), sign), real)


@intrinsic
def _decode(typing_context, tag, mode, bits):
    """The value as float64, exact for every finite number; what Inf and NaN give is unspecified.

    Mode `FAST` converts bf16 and fp32 by the floating-point unit, which reads their subnormals as 0 where the CPU flushes them; `CAREFUL`
    does not.
    """
    unsigned, mantissa, exponent = _LAYOUT[tag]

    def generate(context, builder, signature, args):
        bits = args[2]
        if mantissa == 52:
            return builder.bitcast(bits, _F64)
        if mantissa == 10:
            return builder.fpext(_widened(builder, bits, (10, 5), (23, 8)), _F64)
        if mode == types.int8:
            return _widened(builder, bits, (mantissa, exponent), (52, 11))
        if mantissa == 7:
            bits = builder.shl(builder.zext(bits, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.fpext(builder.bitcast(bits, ir.FloatType()), _F64)

    return types.float64(tag, mode, unsigned), generate


@intrinsic
def _as_float64(typing_context, bits):
    """The float64 that has these bits."""
    return types.float64(types.uint64), lambda context, builder, signature, args: builder.bitcast(args[0], _F64)


@intrinsic
def _as_bits(typing_context, value):
    """The bits of a float64."""
    return types.uint64(types.float64), lambda context, builder, signature, args: builder.bitcast(args[0], _I64)


@intrinsic
def _select(typing_context, condition, yes, no):
    """`yes if condition else no` with both sides computed: never a branch."""

    def generate(context, builder, signature, args):
        return builder.select(cgutils.as_bool_bit(builder, args[0]), args[1], args[2])

    return yes(types.boolean, yes, yes), generate


@njit(**_FLAGS)
def _flushes_subnormals(n):
    """Whether this thread reads subnormals as 0 (`torch.set_flush_denormal`).

    The compiler must not see through the question: n keeps it from knowing the number tried, and it would compare floats as integers.
    """
    return _as_bits(_decode(FP32, FAST, np.uint32(min(n, 1)))) == np.uint64(0)


@njit(**_FLAGS)
def _range(tag, lo, n):
    """Smallest and largest magnitude bits of a block of at least one element."""
    least = most = _magnitude(tag, _load(tag, lo, 0))
    for i in range(n):
        magnitude = _magnitude(tag, _load(tag, lo, i))
        least = min(least, magnitude)
        most = max(most, magnitude)
    return least, most


@njit(**_FLAGS)
def _census(tag, lo, n):
    """Of a block: number of Inf/NaN, number of subnormals, largest finite magnitude bits. Counts are as narrow as the narrowest format."""
    inf, tiny = _inf_bits(tag), _tiny_bits(tag)
    nonfinite = subnormal = np.uint16(0)
    zero = most = _magnitude(tag, inf ^ inf)
    for i in range(n):
        magnitude = _magnitude(tag, _load(tag, lo, i))
        finite = magnitude < inf
        nonfinite = np.uint16(nonfinite + (not finite))
        subnormal = np.uint16(subnormal + ((magnitude != zero) & (magnitude < tiny)))
        most = max(most, _select(finite, magnitude, zero))
    return np.int64(nonfinite), np.int64(subnormal), most


@njit(**_FLAGS)
def _sums(tag, lo, hi, n):
    """diff_sq, hi_sq, lo_sq, dot and largest hi magnitude bits of a block. Inf or NaN in hi makes hi_sq non-finite; lo must be finite."""
    diff_sq = hi_sq = lo_sq = dot = 0.0
    hi_most = np.uint64(0)
    for i in range(n):
        x = _decode(tag, FAST, _load(tag, lo, i))
        bits = _load(FP64, hi, i)
        y = _as_float64(bits)
        hi_most = max(hi_most, _magnitude(FP64, bits))
        diff_sq += (x - y) * (x - y)
        hi_sq += y * y
        lo_sq += x * x
        dot += x * y
    return diff_sq, hi_sq, lo_sq, dot, hi_most


@njit(**_FLAGS)
def _flushed(tag, lo, hi, n):
    """Number of zeros of lo where hi is finite and not zero, and the sum of those hi squared."""
    zero, inf64, count, square = np.uint64(0), _inf_bits(FP64), 0, 0.0
    for i in range(n):
        bits = _load(FP64, hi, i)
        magnitude = _magnitude(FP64, bits)
        flushed = (_magnitude(tag, _load(tag, lo, i)) == 0) & (magnitude != zero) & (magnitude < inf64)
        y = _as_float64(_select(flushed, bits, zero))
        count += flushed
        square += y * y
    return count, square


@njit(**_FLAGS)
def _careful_sums(tag, lo, hi, n):
    """introduced, hi_nonfinite, then what `_sums` gives, over the pairs of which both are finite (hi magnitude: of every finite hi)."""
    zero, inf, inf64 = np.uint64(0), _inf_bits(tag), _inf_bits(FP64)
    introduced = hi_nonfinite = 0
    diff_sq = hi_sq = lo_sq = dot = 0.0
    hi_most = zero
    for i in range(n):
        bits, hi_bits = _load(tag, lo, i), _load(FP64, hi, i)
        magnitude = _magnitude(FP64, hi_bits)
        lo_finite, hi_finite = _magnitude(tag, bits) < inf, magnitude < inf64
        both = lo_finite & hi_finite
        x = _select(both, _decode(tag, CAREFUL, bits), 0.0)
        y = _as_float64(_select(both, hi_bits, zero))
        introduced += (not lo_finite) & hi_finite
        hi_nonfinite += not hi_finite
        hi_most = max(hi_most, _select(hi_finite, magnitude, zero))
        diff_sq += (x - y) * (x - y)
        hi_sq += y * y
        lo_sq += x * x
        dot += x * y
    return introduced, hi_nonfinite, (diff_sq, hi_sq, lo_sq, dot, hi_most)


@njit(**_FLAGS)
def _measure(tag, lo, hi, n):
    """The fields of `measure.Stats`, in order."""
    inf, tiny, size = _inf_bits(tag), _tiny_bits(tag), _size(tag)
    nonfinite = introduced = hi_nonfinite = flushed = subnormal = 0
    flushed_sq = diff_sq = hi_sq = lo_sq = dot = 0.0
    most, hi_most = _magnitude(tag, inf ^ inf), np.uint64(0)
    for start in range(0, n, BLOCK):
        x, y, count = lo + start * size, hi + start * 8, min(BLOCK, n - start)
        least, block_most = _range(tag, x, count)
        sums = _sums(tag, x, y, count)
        finite = (block_most < inf) & (sums[1] < np.inf)
        if not finite or least < tiny:
            block_nonfinite, block_subnormal, block_most = _census(tag, x, count)
            nonfinite += block_nonfinite
            subnormal += block_subnormal
            if not finite or (block_subnormal > 0 and _flushes_subnormals(n)):
                block_introduced, block_hi_nonfinite, sums = _careful_sums(tag, x, y, count)
                introduced += block_introduced
                hi_nonfinite += block_hi_nonfinite
            block_flushed, block_flushed_sq = _flushed(tag, x, y, count)
            flushed += block_flushed
            flushed_sq += block_flushed_sq
        most, hi_most = max(most, block_most), max(hi_most, sums[4])
        diff_sq, hi_sq, lo_sq, dot = diff_sq + sums[0], hi_sq + sums[1], lo_sq + sums[2], dot + sums[3]
    largest, hi_largest = _decode(tag, CAREFUL, most), _as_float64(hi_most)
    return n, nonfinite, introduced, hi_nonfinite, flushed, flushed_sq, subnormal, diff_sq, hi_sq, lo_sq, dot, largest, hi_largest


@njit(**_FLAGS)
def _count_nonfinite(tag, lo, n):
    """Number of Inf and NaN."""
    total = 0
    for start in range(0, n, BLOCK):
        x, count = lo + start * _size(tag), min(BLOCK, n - start)
        if _range(tag, x, count)[1] >= _inf_bits(tag):
            total += _census(tag, x, count)[0]
    return (total,)


@njit(**_FLAGS)
def _lost_loop(tag, mode, base, addend, out, n, alpha):
    inf = _inf_bits(tag)
    lost_sq = addend_sq = base_sq = 0.0
    swamped = addends = 0
    for i in range(n):
        b, a, o = _load(tag, base, i), _load(tag, addend, i), _load(tag, out, i)
        finite = max(_magnitude(tag, b), max(_magnitude(tag, a), _magnitude(tag, o))) < inf
        start = _select(finite, _decode(tag, mode, b), 0.0)
        exact = _select(finite, _decode(tag, mode, a) * alpha, 0.0)
        effective = _select(finite, _decode(tag, mode, o) - start, 0.0)
        lost_sq += (effective - exact) * (effective - exact)
        addend_sq += exact * exact
        base_sq += start * start
        swamped += (exact != 0.0) & (effective == 0.0)
        addends += exact != 0.0
    return lost_sq, addend_sq, base_sq, swamped, addends


@njit(**_FLAGS)
def _lost_addend(tag, base, addend, out, n, alpha):
    """The fields of `measure.LostStats`, in order, over the elements of which all three are finite."""
    if _flushes_subnormals(n):
        return _lost_loop(tag, CAREFUL, base, addend, out, n, alpha)
    return _lost_loop(tag, FAST, base, addend, out, n, alpha)


@njit(**_FLAGS)
def _displacement_loop(tag, mode, lo_new, lo_old, hi_new, hi_old, n):
    inf, inf64 = _inf_bits(tag), _inf_bits(FP64)
    dot = lo_sq = hi_sq = 0.0
    stalled = moved = 0
    for i in range(n):
        a, b, c, d = _load(tag, lo_new, i), _load(tag, lo_old, i), _load(FP64, hi_new, i), _load(FP64, hi_old, i)
        finite = (max(_magnitude(tag, a), _magnitude(tag, b)) < inf) & (max(_magnitude(FP64, c), _magnitude(FP64, d)) < inf64)
        x = _select(finite, _decode(tag, mode, a) - _decode(tag, mode, b), 0.0)
        y = _select(finite, _as_float64(c) - _as_float64(d), 0.0)
        dot += x * y
        lo_sq += x * x
        hi_sq += y * y
        stalled += (x == 0.0) & (y != 0.0)
        moved += y != 0.0
    return dot, lo_sq, hi_sq, stalled, moved, n


@njit(**_FLAGS)
def _displacement(tag, lo_new, lo_old, hi_new, hi_old, n):
    """The fields of `measure.Displacement`, in order, over the elements of which all four are finite."""
    if _flushes_subnormals(n):
        return _displacement_loop(tag, CAREFUL, lo_new, lo_old, hi_new, hi_old, n)
    return _displacement_loop(tag, FAST, lo_new, lo_old, hi_new, hi_old, n)


@njit(**_FLAGS)
def _spread(hi, n, seen, step, factor, lowest, elements, energy):
    """Add `seen` of the n float64 at address `hi`, taken `step` apart around the end, to the counts and normalised energies of binades.

    Values are multiplied by `factor`; zeros, float64 subnormals, Inf and NaN are left out; the outer binades take what lies beyond.
    """
    last = len(elements) - 1
    counts, squares = np.zeros(last + 1), np.zeros(last + 1)
    total, at = 0.0, 0
    for _ in range(seen):
        y = _as_float64(_load(FP64, hi, at)) * factor
        field = np.int64(_magnitude(FP64, _as_bits(y)) >> np.uint64(52))
        if 0 < field < 2047:
            slot = min(max(field - 1023 - lowest, 0), last)
            counts[slot] += 1.0
            squares[slot] += y * y
            total += y * y
        at += step
        if at >= n:
            at -= n
    if total > 0.0 and total < np.inf:
        for slot in range(last + 1):
            elements[slot] += counts[slot] * n / seen
            energy[slot] += squares[slot] / total
    return total


# The entries: one function a format, so that a dispatch looks at plain integers only and each is compiled (or read from the cache) when
# first needed.
_entry = njit(cache=True, **_FLAGS)
measure_fp16 = _entry(lambda lo, hi, n: _measure(FP16, lo, hi, n))
measure_bf16 = _entry(lambda lo, hi, n: _measure(BF16, lo, hi, n))
measure_fp32 = _entry(lambda lo, hi, n: _measure(FP32, lo, hi, n))
measure_fp64 = _entry(lambda lo, hi, n: _measure(FP64, lo, hi, n))
count_nonfinite_fp16 = _entry(lambda lo, n: _count_nonfinite(FP16, lo, n))
count_nonfinite_bf16 = _entry(lambda lo, n: _count_nonfinite(BF16, lo, n))
count_nonfinite_fp32 = _entry(lambda lo, n: _count_nonfinite(FP32, lo, n))
count_nonfinite_fp64 = _entry(lambda lo, n: _count_nonfinite(FP64, lo, n))
spread = _entry(lambda hi, n, seen, step, factor, lowest, elements, energy: _spread(hi, n, seen, step, factor, lowest, elements, energy))
lost_addend_fp16 = _entry(lambda base, addend, out, n, alpha: _lost_addend(FP16, base, addend, out, n, alpha))
lost_addend_bf16 = _entry(lambda base, addend, out, n, alpha: _lost_addend(BF16, base, addend, out, n, alpha))
lost_addend_fp32 = _entry(lambda base, addend, out, n, alpha: _lost_addend(FP32, base, addend, out, n, alpha))
lost_addend_fp64 = _entry(lambda base, addend, out, n, alpha: _lost_addend(FP64, base, addend, out, n, alpha))
displacement_fp16 = _entry(lambda lo_new, lo_old, hi_new, hi_old, n: _displacement(FP16, lo_new, lo_old, hi_new, hi_old, n))
displacement_bf16 = _entry(lambda lo_new, lo_old, hi_new, hi_old, n: _displacement(BF16, lo_new, lo_old, hi_new, hi_old, n))
displacement_fp32 = _entry(lambda lo_new, lo_old, hi_new, hi_old, n: _displacement(FP32, lo_new, lo_old, hi_new, hi_old, n))
displacement_fp64 = _entry(lambda lo_new, lo_old, hi_new, hi_old, n: _displacement(FP64, lo_new, lo_old, hi_new, hi_old, n))
