"""How rounding errors add up: bounds for sums and dot products of n terms.

Every bound is a factor: the error of a sum is at most ``factor * S`` with ``S = sum |x_i|`` (for a dot product ``sum |a_i b_i|``), whatever
cancels. Relative to the result that is ``factor * kappa`` with the condition number ``kappa = S / |sum|``. Results are plain floats; a
bound that says nothing is ``inf``. Stagnation (``stagnation_point``) breaks the square-root bounds: test it by itself.
Zeros of both signs, subnormals, Inf and NaN in the *data* do not enter here: a sum that is subnormal is exact, one that overflows has no
bound, and products that underflow are not covered.
"""

from __future__ import annotations

import math
from enum import Enum

from precisionlab.errors import SettingsError
from precisionlab.formats.format import Format


class SummationOrder(Enum):
    """In which order, and with which rounding, n terms are added. Here h is the height: roundings a term passes through, at most."""

    SEQUENTIAL = "sequential"
    """One running sum. h = n - 1, G = sqrt(n)."""
    BLOCKED = "blocked"
    """Running sums of b terms, then a running sum over the n/b blocks. h = b + n/b - 2, G = sqrt(b) + sqrt(n/b)."""
    PAIRWISE = "pairwise"
    """A balanced binary tree. h = ceil(log2 n), G = sqrt(log2 n)."""
    TRUNCATING = "truncating"
    """One running sum that rounds toward zero, as tensor cores do: errors have one sign and do not average out. h = n - 1, G = n."""


def gamma(n: float, u: float) -> float:
    """Deterministic factor ``gamma_n = n u / (1 - n u)`` of n successive roundings, and ``inf`` where ``n u >= 1``: there it is void.

    ``n`` roundings (for a sum, ``summation_height``), ``u`` the unit roundoff (``Format.u``; ``Format.eps`` for truncation). Void from
    n = 2048 in fp16 and n = 256 in bf16. Raises: SettingsError if ``n < 0`` or ``u`` is not in (0, 1).
    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, Lemma 3.1.
    """
    _check(n, u)
    return n * u / (1.0 - n * u) if n * u < 1.0 else math.inf


def summation_height(n: int, order: SummationOrder, block: int | None = None) -> int:
    """Roundings that a term passes through at most when n terms are added in ``order``; ``gamma`` of it bounds the error. 0 for n <= 1.

    BLOCKED counts an unfinished block as a whole one. Raises: SettingsError if ``n < 0``, or ``block`` is missing or not positive for
    BLOCKED.
    Source: Higham 2002 §4.2; blocked: Blanchard, Higham, Mary 2020, A class of fast and accurate summation algorithms.
    """
    block = _checked_block(n, order, block)
    if n <= 1:
        return 0
    if order is SummationOrder.PAIRWISE:
        return (n - 1).bit_length()  # = ceil(log2 n)
    if order is SummationOrder.BLOCKED:
        return block + -(-n // block) - 2
    return n - 1


def growth_factor(n: int, order: SummationOrder, block: int | None = None) -> float:
    """Expected size G(n, order) of the accumulated error in units of u S, up to a small constant.


    sequential ``sqrt(n)``, blocked ``sqrt(b) + sqrt(n/b)`` with b at most n, pairwise ``sqrt(log2 n)``, truncating ``n``. At least 1 for
    n >= 1 (as if one rounding took place; a true single-term sum is exact), 0 for n = 0.
    Raises: SettingsError if ``n < 0``, or ``block`` is missing or not positive for BLOCKED.
    Source: Higham & Mary 2019, A new approach to probabilistic rounding error analysis, §3 with ``summation_height``; truncation: bias
    linear in n, Fasi, Higham, Mikaitis, Pranesh 2021, Numerical behavior of NVIDIA tensor cores.
    """
    block = _checked_block(n, order, block)
    if n == 0:
        return 0.0
    if order is SummationOrder.SEQUENTIAL:
        return math.sqrt(n)
    if order is SummationOrder.BLOCKED:
        return math.sqrt(block) + math.sqrt(n / block)
    if order is SummationOrder.PAIRWISE:
        return max(1.0, math.sqrt(math.log2(n)))
    return float(n)


def probabilistic_bound(n: float, u: float, lam: float = 1.0) -> float:
    """Factor ``lam * sqrt(n) * u`` of n successive roundings whose errors have mean zero given the past; ``inf`` where it reaches 1.

    Unlike ``gamma`` it needs no ``n u < 1``, only that errors stay unbiased, which stagnation and truncation violate. First order in u.
    ``lam = 1`` covered 200 of 200 trials of U[0,1] sums in fp16. Raises: SettingsError if ``n < 0``, ``u`` is not in (0, 1)
    or ``lam <= 0``. Source: Higham & Mary 2019 Theorem 2.4 (number recalled); Connolly, Higham, Mary 2021 (holds for stochastic rounding
    without assumption).
    """
    _check(n, u)
    _check_lambda(lam)
    bound = lam * math.sqrt(n) * u
    return bound if bound < 1.0 else math.inf


def probabilistic_failure(n: float, u: float, lam: float) -> float:
    """Largest probability that ``probabilistic_bound`` fails for a sum of n terms: ``min(1, 2 n exp(-lam^2 (1-u)^2 / 2))``.

    A guarantee, hence pessimistic: it says nothing (1) at ``lam = 1``. Raises: as ``probabilistic_bound``.
    Source: Higham & Mary 2019 Theorem 3.1; form and number recalled, not re-read.
    """
    _check(n, u)
    _check_lambda(lam)
    return min(1.0, 2.0 * n * math.exp(-((lam * (1.0 - u)) ** 2) / 2.0))


def stagnation_point(term: float, fmt: Format) -> float:
    """The sum at which adding terms of magnitude ``|term|`` or less stops having any effect, under round to nearest even.

    It is the smallest power of two s with ``ulp(s) >= 2 |term|``: adding up to half a spacing to an even significand is lost. Ones stop at
    2048 in fp16 and 256 in bf16. A term at or below ``fmt.flush_threshold`` never gets into the sum: 0. ``inf`` if the sum overflows first,
    and for zeros (of either sign), Inf and NaN, which have no effect to lose.
    Units: those of ``term``. Source: ties to even, IEEE 754-2019 §4.3.1.
    """
    if term == 0.0 or not math.isfinite(term):
        return math.inf
    if abs(term) <= fmt.flush_threshold:
        return 0.0
    mantissa, exponent = math.frexp(abs(term))  # |term| = mantissa * 2^exponent with mantissa in [0.5, 1)
    log2_term_up = exponent - 1 if mantissa == 0.5 else exponent  # ceil(log2 |term|)
    log2_point = log2_term_up + fmt.precision  # ulp(s) = 2^(1-p) s; above emin, since |term| > min_subnormal / 2
    return 2.0**log2_point if log2_point <= fmt.emax else math.inf


def _check(n: float, u: float) -> None:
    if not n >= 0:
        raise SettingsError(f"a number of roundings cannot be {n}", hint="n >= 0")
    if not 0.0 < u < 1.0:
        raise SettingsError(f"{u} is not a unit roundoff", hint="Format.u, a number between 0 and 1")


def _check_lambda(lam: float) -> None:
    if not lam > 0.0:
        raise SettingsError(f"lambda must be positive, not {lam}", hint="1 for typical errors, 5 or more for a guarantee")


def _checked_block(n: int, order: SummationOrder, block: int | None) -> int:
    """The block length to use, at most n; 1 for orders without blocks."""
    if n < 0:
        raise SettingsError(f"a sum cannot have {n} terms", hint="n >= 0")
    if order is not SummationOrder.BLOCKED:
        return 1
    if block is None or block < 1:
        raise SettingsError(f"blocked summation needs a positive block length, not {block}", hint="block=128")
    return min(block, max(n, 1))
