"""What other accumulations would have done to a reduction, tried on a sample of its outputs.

The caller hands over the terms of m sampled outputs, or the operand rows of m dot products; each candidate plan is emulated on them bit
for bit (``formats.emulate``) and compared with fp64 sums. Shares come with Clopper-Pearson intervals, which hold for outputs drawn
uniformly: none of 512 flagged means a share below 0.72 %. The largest error of a sample underestimates that of the whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precisionlab.errors import SettingsError
from precisionlab.formats import FP32, Accumulation, AccumulationPlan, Format, SumRounding, emulate, round_to
from precisionlab.formats.accumulate_blocks import product_exponents
from precisionlab.formats.format import FloatArray, as_float64

CONFIDENCE = 0.95
"""Of every interval, two-sided."""
SAFETY = 8.0
"""A plan is not tried where it provably adds less than the storage rounding over this."""
STAGNATED_TERMS = 0.01
"""Share of the non-zero terms of an output that must have stalled for the output to count as stagnated."""
STAGNATED_ERROR_U = 8.0
"""Error, in u of storage, that it must have besides: in sums with mean zero terms vanish and return."""
NOMINAL_FACTOR = 4.0
"""c of the bound that rho refers to: half an ulp + c sqrt(n) u32 S, as ``ops.local`` has it."""


@dataclass(frozen=True)
class Share:
    """``count`` of ``total`` outputs, and the interval in which the share of all outputs lies at ``CONFIDENCE``."""

    count: int
    total: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """``count / total``; 0 of none."""
        return self.count / self.total if self.total else 0.0

    def __contains__(self, share: float) -> bool:
        return self.low <= share <= self.high


@dataclass(frozen=True)
class Trial:
    """One plan on the sampled outputs. Errors are those of the stored result, in u of the storage format."""

    plan: AccumulationPlan
    emulated: bool
    """False where the plan provably stays inside the storage rounding (see ``trials``): errors are then those of storing the exact sum."""
    bound_u: float
    """Largest error the sums can have before they are stored, in u; ``inf`` where no bound holds. Source: ``bound_factor``."""
    error_rms_u: float
    """||stored - exact|| / ||exact||, over the sample."""
    error_rms_interval: tuple[float, float]
    """Where that value lies for all outputs at ``CONFIDENCE``, by the normal approximation to a ratio of two means; short of that for
    samples of a few dozen."""
    error_p99_u: float
    """The error that 1 % of the outputs exceed, each against the larger of its own size and the rms of all."""
    error_max_u: float
    """The largest of these."""
    rho_max: float
    """Largest error over half an ulp of storage plus what a running fp32 sum may add: 1 is as good as it gets."""
    rho_p99: float
    """The ratio that 1 % of the outputs exceed."""
    stagnated_terms: float
    """Mean share of non-zero terms that left the running sum as it was."""
    stagnated: Share
    """Outputs in which more than ``STAGNATED_TERMS`` of them did so and that are wrong by more than ``STAGNATED_ERROR_U``."""
    overflowed: Share
    """Outputs of which a partial sum exceeded its format, or whose finite sum the storage format cannot hold."""
    largest: int = 0
    """Outputs tried besides, chosen for their size: they count in maxima only, and in the next two."""
    largest_stagnated: int = 0
    largest_overflowed: int = 0


@dataclass(frozen=True)
class Sample:
    """Sampled outputs of one reduction, and what becomes of their sums before they are stored. m outputs of n terms."""

    terms: FloatArray
    """(m, n)."""
    storage: Format
    alignment: FloatArray | None = None
    """2^exponent by which a block FMA aligns each term, (m, n); None: the terms' own."""
    divisor: FloatArray | float = 1.0
    """What each sum is divided by, a scalar or (m,): n for a mean."""
    root: bool = False
    """Whether the square root is taken, of a norm."""
    uniform: int | None = None
    """How many of the outputs, the first, were drawn uniformly; the rest for their size. None: all."""

    @classmethod
    def of_products(
        cls, left: ArrayLike, right: ArrayLike, storage: Format, *, divisor: FloatArray | float = 1.0, uniform: int | None = None
    ) -> Sample:
        """Dot products of the rows of ``left`` and ``right``, both (m, n), their products exact. Raises: as ``dot_trials``."""
        terms, alignment = _products(left, right)
        return cls(terms, storage, alignment, divisor, uniform=uniform)


@dataclass(frozen=True)
class _Reduction:
    """The sampled reduction: what every plan is compared with. Arrays have shape (m,), unless said otherwise."""

    terms: FloatArray
    """(m, n)."""
    alignment: FloatArray | None
    """2^exponent of products, (m, n), for block FMA."""
    storage: Format
    exact: FloatArray
    size: FloatArray
    """S = sum |x|."""
    norm: float
    """Root mean square of the exact sums, but no less than what an fp32 sum of the same terms may be off by, in u of storage: a sum that
    is exactly zero holds nothing but noise. Source: as ``ops.local``."""
    scale: FloatArray
    """What the error of one output is relative to: the larger of |exact| and ``norm``."""
    sums: FloatArray
    """The exact sums, which ``exact`` is made of."""
    total: FloatArray
    """Sum of absolute terms: the largest that a partial sum can be, but for its roundings."""
    divisor: FloatArray
    root: bool
    uniform: NDArray[np.bool_]
    """Which outputs were drawn uniformly."""

    @property
    def kappa(self) -> float:
        """Largest S / scale."""
        return float((self.size / self.scale).max())

    def finished(self, sums: FloatArray) -> FloatArray:
        """What the op makes of its sums."""
        return np.sqrt(sums / self.divisor) if self.root else sums / self.divisor


def trials(
    terms: ArrayLike, storage: Format, plans: Iterable[AccumulationPlan], *, rng: np.random.Generator | None = None
) -> tuple[Trial, ...]:
    """Each plan on the ``terms`` (m outputs, n terms), the results stored in ``storage``.

    A plan is not emulated where ``bound_factor(n) * kappa < u / 8``, kappa = S / scale at its largest, provided that no partial sum can
    overflow (S below the largest number) and what underflow may cost is as small: the roundings of the sum are then invisible beside the
    one of storing it. Outputs whose exact sum or terms are not finite are left out. ``rng`` draws for stochastic rounding; None is a
    generator seeded with 0.
    Raises: SettingsError for anything but a two-dimensional array, and where no finite output is left.
    """
    return _trials(Sample(as_float64(terms), storage), plans, rng)


def _trials(sample: Sample, plans: Iterable[AccumulationPlan], rng: np.random.Generator | None) -> tuple[Trial, ...]:
    return sample_trials([(sample, plans)], rng=rng)[0]


def sample_trials(
    jobs: Iterable[tuple[Sample, Iterable[AccumulationPlan]]], *, rng: np.random.Generator | None = None
) -> list[tuple[Trial, ...]]:
    """``trials`` of many reductions at once, each under its plans, in their order.

    Sums of one length under one plan are emulated side by side: the time goes into additions one after the other, hardly into how many
    sums there are. Stochastic rounding draws for each plan of each sample on its own. Raises: as ``trials``.
    """
    reductions = [(_reduction(sample), tuple(plans)) for sample, plans in jobs]
    results: dict[tuple[int, int], Trial] = {}
    together: dict[tuple[AccumulationPlan, int, bool], list[tuple[int, int, float]]] = defaultdict(list)
    for i, (reduction, plans) in enumerate(reductions):
        n = reduction.terms.shape[1]
        for j, plan in enumerate(plans):
            bound = plan.bound_factor(n) * reduction.kappa
            if _provably_invisible(reduction, plan, bound):
                results[i, j] = _summary(reduction, plan, bound, None)
            elif plan.rounding is SumRounding.STOCHASTIC:
                drawn = emulate(reduction.terms, plan, np.random.default_rng(0) if rng is None else rng, alignment=reduction.alignment)
                results[i, j] = _summary(reduction, plan, bound, drawn)
            else:
                together[plan, n, reduction.alignment is not None].append((i, j, bound))
    for (plan, _, aligned), places in together.items():
        batch = [reductions[i][0] for i, _, _ in places]
        weights = np.concatenate([r.alignment for r in batch if r.alignment is not None]) if aligned else None
        found = emulate(np.concatenate([r.terms for r in batch]), plan, alignment=weights)
        start = 0
        for (i, j, bound), reduction in zip(places, batch, strict=True):
            rows = slice(start, start + len(reduction.exact))
            start = rows.stop
            results[i, j] = _summary(reduction, plan, bound, _rows(found, rows))
    return [tuple(results[i, j] for j in range(len(plans))) for i, (_, plans) in enumerate(reductions)]


def _rows(found: Accumulation, rows: slice) -> Accumulation:
    return Accumulation(found.sums[rows], found.nonzero[rows], found.stagnated[rows], found.overflowed[rows], found.largest_partial[rows])


def dot_trials(
    a: ArrayLike,
    b: ArrayLike,
    storage: Format,
    plans: Iterable[AccumulationPlan],
    *,
    products: Format | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[Trial, ...]:
    """``trials`` of the dot products of the rows of ``a`` and ``b``, both (m, n). ``products``: format of each product, None for exact.

    Raises: SettingsError for shapes that differ, and as ``trials``. Products are exact for operands of up to 26 digits.
    """
    terms, alignment = _products(a, b)
    sample = Sample(terms, storage, alignment) if products is None else Sample(round_to(terms, products), storage)
    return _trials(sample, plans, rng)


def _products(a: ArrayLike, b: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Products row by row, and the exponents a matrix unit aligns them by."""
    left, right = as_float64(a), as_float64(b)
    if left.shape != right.shape:
        raise SettingsError(f"operands of shapes {left.shape} and {right.shape} have no products row by row", hint="equal shapes (m, n)")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return left * right, product_exponents(left, right)


def sample_outputs(a: ArrayLike, b: ArrayLike, m: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Operand rows (m, k) of m outputs of ``a @ b`` drawn uniformly without repetition, all of them where there are no more.

    Shapes: a (rows, k), b (k, columns). Raises: SettingsError if they cannot be multiplied or m < 1.
    """
    left, right = as_float64(a), as_float64(b)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise SettingsError(f"{left.shape} @ {right.shape} is no product of two matrices", hint="shapes (rows, k) and (k, columns)")
    if m < 1:
        raise SettingsError(f"a sample of {m} outputs says nothing", hint="m=512")
    outputs = left.shape[0] * right.shape[1]
    chosen = rng.choice(outputs, min(m, outputs), replace=False)
    return left[chosen // right.shape[1]], right.T[chosen % right.shape[1]]


def clopper_pearson(count: int, total: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact interval of a binomial share; (0, 1) for a total of 0.

    Raises: SettingsError if not 0 <= count <= total or confidence is outside (0, 1).
    Source: Clopper & Pearson 1934, The use of confidence or fiducial limits illustrated in the case of the binomial.
    """
    from scipy.special import betaincinv  # a tenth of a second to import

    if not 0 <= count <= total or not 0.0 < confidence < 1.0:
        raise SettingsError(f"{count} of {total} at confidence {confidence} is no share", hint="0 <= count <= total, 0 < confidence < 1")
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, tail))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1.0 - tail))
    return low, high


def _reduction(sample: Sample) -> _Reduction:
    terms = sample.terms
    if terms.ndim != 2:
        raise SettingsError(f"terms of shape {terms.shape} are no sampled outputs", hint="shape (outputs, terms)")
    m, n = terms.shape
    with np.errstate(over="ignore", invalid="ignore"):
        sums, total = terms.sum(1), np.abs(terms).sum(1)  # pairwise in fp64: 2^-53 log2(n) of S
    finite = np.isfinite(total)
    if not finite.any():
        raise SettingsError("no sampled output has finite terms", hint="outputs that are finite in the program")
    uniform = np.arange(m) < (m if sample.uniform is None else sample.uniform)
    divisor = np.broadcast_to(np.asarray(sample.divisor, np.float64), m)
    terms, sums, total, uniform, divisor = terms[finite], sums[finite], total[finite], uniform[finite], divisor[finite]
    if not uniform.any():
        uniform = np.ones(len(sums), np.bool_)
    exact = np.sqrt(sums / divisor) if sample.root else sums / divisor
    size = exact if sample.root else total / np.abs(divisor)  # a root halves relative errors
    noise = _nominal_error(n, size) / sample.storage.u
    norm = max(_rms(exact[uniform]), _rms(noise[uniform])) or 1.0
    weights = None if sample.alignment is None else sample.alignment[finite]
    scale = np.maximum(np.abs(exact), norm)
    return _Reduction(terms, weights, sample.storage, exact, size, norm, scale, sums, total, divisor, sample.root, uniform)


def _nominal_error(n: int, size: FloatArray) -> FloatArray:
    """What a running fp32 sum of n terms may add: c sqrt(n) u32 S."""
    return NOMINAL_FACTOR * math.sqrt(n) * FP32.u * size


def _rms(values: FloatArray) -> float:
    return math.sqrt(float((values**2).mean()))


def _summary(reduction: _Reduction, plan: AccumulationPlan, bound: float, found: Accumulation | None) -> Trial:
    """What an emulation ``found``; None where the sums are as good as exact."""
    storage, uniform, m = reduction.storage, reduction.uniform, len(reduction.exact)
    sums = reduction.sums if found is None else found.sums
    with np.errstate(invalid="ignore", over="ignore"):
        results = reduction.exact if found is None else reduction.finished(sums)
        stored = round_to(results, storage)
        error = np.abs(stored - reduction.exact)
    stalled = np.zeros(m) if found is None else found.stagnated_share
    overflowed = ~np.isfinite(stored) | (np.abs(results) > storage.overflow_threshold)
    if found is not None:
        overflowed |= found.overflowed
    error = np.where(np.isnan(error), np.inf, error)
    each = error / (storage.u * reduction.scale)
    squares = (error / (storage.u * reduction.norm))[uniform] ** 2
    half_ulp = storage.ulp(reduction.exact) / 2.0
    rho = error / (half_ulp + _nominal_error(reduction.terms.shape[1], reduction.size))
    stagnated = (stalled > STAGNATED_TERMS) & (each > STAGNATED_ERROR_U)
    drawn = int(uniform.sum())
    return Trial(
        plan=plan,
        emulated=found is not None,
        bound_u=bound / storage.u,
        error_rms_u=math.sqrt(float(squares.mean())),
        error_rms_interval=_ratio_interval(squares, (reduction.exact / reduction.norm)[uniform] ** 2),
        error_p99_u=_quantile(each[uniform], 0.99),
        error_max_u=float(each.max()),
        rho_max=float(rho.max()),
        rho_p99=_quantile(rho[uniform], 0.99),
        stagnated_terms=float(stalled[uniform].mean()),
        stagnated=_share(stagnated[uniform], drawn),
        overflowed=_share(overflowed[uniform], drawn),
        largest=m - drawn,
        largest_stagnated=int(stagnated[~uniform].sum()),
        largest_overflowed=int(overflowed[~uniform].sum()),
    )


def _provably_invisible(reduction: _Reduction, plan: AccumulationPlan, bound: float) -> bool:
    limit = reduction.storage.u / SAFETY
    if plan.rounding is SumRounding.STOCHASTIC or not bound < limit:
        return False
    formats = {plan.format, plan.outer_format, plan.stored_format}
    largest = min(fmt.max for fmt in formats)
    flush = max(fmt.min_subnormal for fmt in formats) * reduction.terms.shape[1]
    smallest = reduction.scale * np.abs(reduction.divisor) if not reduction.root else reduction.sums  # that a sum may be off by
    return bool((reduction.total * (1.0 + bound) < largest).all() and (flush < limit * smallest).all())


def _ratio_interval(squares: FloatArray, sizes: FloatArray) -> tuple[float, float]:
    """Interval of sqrt(mean squared error / mean squared size), both of the sample; ``squares`` and ``sizes`` (m,) relative to the norm.

    Source: Cochran 1977, Sampling Techniques, §6.5: variance of a ratio estimator. Errors that grow with the result make it narrow.
    """
    mean = float(squares.mean())
    if len(squares) < 2 or not math.isfinite(mean):
        return (0.0, math.inf)
    from scipy.special import ndtri

    residual = squares - mean * sizes
    half = float(ndtri(0.5 + CONFIDENCE / 2.0)) * float(residual.std(ddof=1)) / math.sqrt(len(squares))
    return math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half)


def _quantile(values: FloatArray, q: float) -> float:
    """An order statistic, not an interpolation: infinite entries stay what they are."""
    return float(np.sort(values)[max(0, math.ceil(q * len(values)) - 1)])


def _share(flags: NDArray[np.bool_], total: int) -> Share:
    count = int(flags.sum())
    return Share(count, total, *clopper_pearson(count, total))
