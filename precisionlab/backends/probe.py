"""Probes the kernels of the machine at hand: every case, dtype and class of lengths, by crafted inputs alone.

Runs outside of any dispatch mode, autocast and autograd; draws no random numbers of torch and leaves its switches as they are, so what
is found is what a program with these switches gets. The number of threads can change the order of long sums: it is noted.
"""

from __future__ import annotations

import contextlib
import fnmatch
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from precisionlab.backends.additions import Additions, ask_additions, flushes_subnormals, term_bits
from precisionlab.backends.cases import DTYPES, Adapter, Case, Method, all_cases
from precisionlab.backends.error_level import accumulation_by_error, error_level, lost_share
from precisionlab.backends.profile import Entry, Order, Origin, Profile, Rounding, SizeClass
from precisionlab.backends.trees import FloatArray, Masks, NotASumError, Sums, Tree, summation_tree
from precisionlab.formats.catalogue import FP32, get_format
from precisionlab.formats.format import Format

LENGTHS = {SizeClass.SHORT: 128, SizeClass.MEDIUM: 1024, SizeClass.LONG: 16384}
"""The length at which each class is probed: a power of two, so that means divide exactly."""
_ALL_POSITIONS = 1024
"""Up to here every position is a leaf of the tree that is looked for."""
_GROUPS, _FEW_GROUPS, _GROUP = 16, 4, 4
"""Sampled positions: so many groups of four neighbours; few where a result can count no more than a few units (fp16 means)."""
_FEW_UNITS = 16


def probe(
    ops: Sequence[str] = ("*",),
    dtypes: Sequence[torch.dtype] = DTYPES,
    device: str = "cpu",
    classes: Iterable[SizeClass] = tuple(SizeClass),
    name: str = "",
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """The profile of this machine: entries for all cases whose op matches one of the globs ``ops`` (``aten.mm``, ``mm``, ``*norm*``).

    A kernel that refuses a dtype or a device is left out and named in the notes. ``progress`` is told each op as it begins.
    """
    entries: list[Entry] = []
    refused: dict[str, list[str]] = {}
    classes = tuple(classes)
    for case in all_cases():
        if not any(matches(case.op, pattern) for pattern in ops):
            continue
        if progress is not None:
            progress(case.op)
        for dtype in dtypes:
            try:
                entries += [probe_case(case, dtype, size_class, device) for size_class in classes]
            except (RuntimeError, NotImplementedError, TypeError) as error:
                reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
                refused.setdefault(f"{case.op}: {reason}", []).append(get_format(dtype).name)
    notes = [f"{torch.get_num_threads()} threads"]
    notes += [f"not probed: {what} ({', '.join(dict.fromkeys(names))})" for what, names in refused.items()]
    return Profile(
        name or device, torch.device(device).type, hardware(device), torch.__version__, Origin.PROBED, tuple(entries), (), tuple(notes)
    )


def matches(op: str, pattern: str) -> bool:
    """Whether the glob means the op; the namespace and a trailing underscore may be left out."""
    plain = pattern.rstrip("_")
    return fnmatch.fnmatchcase(op, plain) or fnmatch.fnmatchcase(op.partition(".")[2], plain)


def probe_case(case: Case, dtype: torch.dtype, size_class: SizeClass, device: str = "cpu") -> Entry:
    """One entry. Raises what the kernel raises where it does not take the dtype or the device."""
    length, storage = LENGTHS[size_class], get_format(dtype)
    with quiet():
        if case.method is Method.ERROR:
            return _by_error(case, dtype, size_class, length, storage, device)
        try:
            return _by_masks(case, kernel(case.adapter, dtype, case.rows, device), size_class, length, storage)
        except NotASumError as error:
            return Entry(
                case.op, storage.name, size_class, storage.name, case=case.label, evidence={"terms": length, "unclear": error.message}
            )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Kernels as they are, whatever modes the caller is in."""
    with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def kernel(adapter: Adapter, dtype: torch.dtype, rows: int, device: str = "cpu") -> Sums:
    """The adapter as a function of arrays, always called with ``rows`` rows."""

    def sums(terms: FloatArray) -> FloatArray:
        given = torch.from_numpy(terms).to(dtype).to(device)
        results = []
        for start in range(0, len(terms), rows):
            part = given[start : start + rows]
            if len(part) < rows:
                part = torch.nn.functional.pad(part, (0, 0, 0, rows - len(part)))
            results.append(adapter(part.contiguous()).double().cpu().numpy())
        return np.concatenate(results)[: len(terms)]

    return sums


def _by_masks(case: Case, sums: Sums, size_class: SizeClass, length: int, storage: Format) -> Entry:
    masks = Masks.of(storage, length, case.divides)
    positions = sample_positions(length, masks)
    whole = len(positions) == length
    tree = summation_tree(sums, length, positions, masks)
    found = ask_additions(sums, length, tree, storage, case.divides)
    terms_flushed, results_flushed = flushes_subnormals(sums, length, storage, case.divides)
    evidence: dict[str, float | int | bool | str] = {"terms": length, "positions_asked": len(positions)}
    if whole:
        evidence |= {"additions_on_longest_path": tree.height, "longest_run": tree.longest_run()}
    evidence |= {
        "terms_of_an_addition": tree.widest(),
        "flushes_subnormal_terms": terms_flushed,
        "flushes_subnormal_results": results_flushed,
        "term_bits": term_bits(sums, length, storage),
    }
    if found is not None:
        evidence |= _additions_evidence(found)
    order = order_of(tree, sampled=not whole)
    return Entry(
        case.op,
        storage.name,
        size_class,
        found.accumulation(storage) if found is not None else storage.name,
        order,
        tree.longest_run() if whole and order is Order.BLOCKED else None,
        found.rounding if found is not None else Rounding.UNKNOWN,
        terms_flushed or results_flushed,
        case.label,
        evidence,
    )


def _additions_evidence(found: Additions) -> dict[str, float | int | bool | str]:
    return {
        "additions_asked": found.nodes,
        "significand_bits_min": found.bits_min,
        "significand_bits_max": found.bits_max,
        "partial_sums_overflow": found.overflows,
    }


def _by_error(case: Case, dtype: torch.dtype, size_class: SizeClass, length: int, storage: Format, device: str) -> Entry:
    sums = kernel(case.adapter, dtype, case.rows, device)
    result = get_format(case.adapter(torch.ones(case.rows, length, dtype=dtype, device=device)).dtype)
    level = error_level(sums, kernel(case.adapter, torch.float64, case.rows, device), length, storage, result)
    accumulation = accumulation_by_error(level, storage, result)
    evidence: dict[str, float | int | bool | str] = {"terms": length, "rows": level.rows, "error_ulps_max": round(level.ulps, 3)}
    if result.precision < FP32.precision and accumulation == FP32.name:
        evidence["at_least"] = True
    order, block = Order.UNKNOWN, None
    if case.unfolded is not None and result == FP32 and accumulation == FP32.name:
        share = lost_share(sums, case.unfolded, length, FP32)
        evidence["lost_share"] = round(share, 4)
        run = round(share * (length - 1)) + 1
        order = Order.SEQUENTIAL if run > 0.9 * length else Order.PAIRWISE if run <= 2 else Order.BLOCKED
        block = run if order is Order.BLOCKED else None
    return Entry(case.op, storage.name, size_class, accumulation, order, block, case=case.label, evidence=evidence)


def sample_positions(length: int, masks: Masks) -> list[int]:
    """All positions of a short sum; of a long one, groups of neighbours at equal distances.

    The neighbours tell blocks (they meet before the group before joins) from one running sum; groups that lie a multiple of the vector
    length apart meet in one lane of it.
    """
    if length <= _ALL_POSITIONS and masks.count >= min(length, 128):
        return list(range(length))
    groups = _GROUPS if masks.count >= _FEW_UNITS else _FEW_GROUPS
    return [start + i for start in range(0, length, length // groups) for i in range(_GROUP)]


def order_of(tree: Tree, sampled: bool = False) -> Order:
    """Sequential where every addition takes one more term; pairwise up to twice the height of a balanced tree; else blocked.

    The tree over a sample of the terms is lower than the whole and shows no more than that there are several partial sums: blocked.
    """
    if tree.longest_run() == tree.leaves:
        return Order.SEQUENTIAL
    balanced = (tree.leaves - 1).bit_length()
    return Order.PAIRWISE if tree.height <= 2 * balanced and not sampled else Order.BLOCKED


def hardware(device: str = "cpu") -> str:
    """The processor and what decides its kernels: for a CPU, the instruction sets that torch uses."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    extensions = [
        word
        for word, supported in (
            ("avx512_bf16", torch.cpu._is_avx512_bf16_supported),
            ("amx", torch.cpu._is_amx_tile_supported),
            ("amx_fp16", torch.cpu._is_amx_fp16_supported),
        )
        if supported()
    ]
    return " ".join([_processor(), torch.backends.cpu.get_cpu_capability(), *extensions])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return " ".join(dict.fromkeys(names)) or platform.processor() or platform.machine()
