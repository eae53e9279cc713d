"""What an audit costs: time, memory, fixed cost an op, growth with the model, start of the command line.

    ./dev bench speed [--quick] [--only PART ...] [--repeat N] [--json FILE]        parts: step fixed memory fast growth start

The program is a GPT (width 256, 4 layers, vocabulary 8192, 4 x 256 tokens, AdamW, clipping) under bf16 autocast; --quick takes a small one,
whose ratios are worse, since the fixed cost an op weighs more: its limits are not judged. Variants are interleaved in one process, and
medians compared. Time is CPU time of the process (all threads): on a machine that others use, wall time says little; it is printed beside.
"bare" keeps twins and measures nothing. On a CPU without bf16 instructions the plain step is so slow that the ratios say little: a second
table runs the half products in fp32 (``--kernels fast``) in every variant, which stands for a machine that is good at bf16.

Exit 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(
        Path(__file__).resolve().parents[1]
    )  # and not bench/, whose coverage.py would pass for the package that numba imports

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import precisionlab as pl
from precisionlab.shadow.fast import fast_low_side, native_half_is_slow
from precisionlab.shadow.memory import ShadowMemory
from precisionlab.shadow.mode import ShadowMode
from precisionlab.shadow.opinfo import OpInfo
from precisionlab.shadow.sites import Locator, ModuleStack

ROOT = Path(__file__).resolve().parents[1]

STEP_LIMITS = {"bare": 1.14, "quick": 1.3, "standard": 1.6}  # audited / (plain + fp64)
FIXED_LIMITS = {"quick": 100.0, "standard": 250.0}  # microseconds an op
MEMORY_LIMIT = 1.25  # audited peak / (plain peak + fp64 peak)
FAST_LIMIT = 1.0  # audit --dtype fp16 --kernels fast / native fp16 step
GROWTH_LIMIT = 1.15  # exponent of cost against size; below 1 is a constant share
START_LIMIT = 0.3  # seconds without torch
START_JUDGED = ("import precisionlab", "precisionlab --help")

PARTS = ("step", "fixed", "memory", "fast", "growth", "start")


@dataclass(frozen=True)
class Size:
    """A GPT and its batch."""

    width: int = 256
    depth: int = 4
    heads: int = 4
    vocabulary: int = 8192
    sequences: int = 4
    length: int = 256


FULL = Size()
SMALL = Size(width=64, depth=2, vocabulary=512, sequences=2, length=64)


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.length, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position.weight[: tokens.shape[1]])))


def tokens_of(size: Size) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    tokens = torch.randint(0, size.vocabulary, (size.sequences, size.length + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross entropy."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())


class Training:
    """A model with its optimizer: ``step()`` is one training step, in fp64 or under autocast."""

    def __init__(self, size: Size, *, low: torch.dtype | None = torch.bfloat16, kernels: str = "native") -> None:
        self.kernels = kernels
        torch.manual_seed(0)
        self.model = GPT(size)
        if low is None:
            self.model.double()
        self.low = low
        self.batch = tokens_of(size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", enabled=low is torch.float16)

    def step(self) -> None:
        """Forward, backward, clipping, update."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=self.low or torch.bfloat16, enabled=self.low is not None):
            loss = loss_of(self.model, self.batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def begin(self, variant: str) -> Callable[[], Any]:
        """Begin to watch (``plain`` and ``fp64`` are not watched); returns what ends it."""
        mode: TorchDispatchMode
        if variant in STEP_LIMITS and variant != "bare":
            return pl.audit(model=self.model, optimizer=self.optimizer, preset=variant, kernels=self.kernels).start().stop
        if variant == "bare":
            mode = ShadowMode(ShadowMemory(), Locator(ModuleStack()), None)
            mode.low_side = fast_low_side if self.kernels == "fast" else None
        elif variant == "plain" and self.kernels == "fast":
            mode = FastKernels()
        else:
            return lambda: None
        mode.__enter__()
        return lambda: mode.__exit__(None, None, None)


class FastKernels(TorchDispatchMode):
    """Half products in fp32, without any audit."""

    def __init__(self) -> None:
        super().__init__()
        self.infos: dict[Any, OpInfo] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        info = self.infos.get(func) or self.infos.setdefault(func, OpInfo(func))
        out = fast_low_side(info, args, kwargs or {})
        return func(*args, **(kwargs or {})) if out is NotImplemented else out


@dataclass
class Outcome:
    """Tables, judged numbers, and which of them missed a limit."""

    numbers: dict[str, Any] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def judge(self, name: str, value: float, limit: float, judged: bool = True) -> str:
        """``value`` with its limit, for a table; noted when missed."""
        self.numbers[name] = {"value": value, "limit": limit, "judged": judged}
        if judged and value > limit:
            self.missed.append(f"{name} is {value:.3g}, limit {limit:g}")
        return f"{value:.3g} (limit {limit:g}{'' if value <= limit else ', MISSED' if judged else ', not judged here'})"


def table(heads: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def interleaved(runs: dict[str, Callable[[], tuple[float, float]]], repeat: int) -> dict[str, tuple[float, float]]:
    """Medians of CPU and wall seconds of each, taken in turns after one round to warm up."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(repeat + 1):
        for name, run in runs.items():
            one = run()
            if turn:
                taken[name].append(one)
        print(
            f"  round {turn} of {repeat}: " + ", ".join(f"{n} {t[-1][0]:.2f}" for n, t in taken.items() if t), file=sys.stderr, flush=True
        )
    return {name: (statistics.median(c for c, _ in t), statistics.median(w for _, w in t)) for name, t in taken.items()}


def steps_of(size: Size, variants: list[str], kernels: str = "native") -> dict[str, Callable[[], tuple[float, float]]]:
    """A timed step of each variant, each with its own model. An audit begins and ends outside of the time taken."""

    def run(training: Training, variant: str) -> tuple[float, float]:
        end = training.begin(variant)
        try:
            return timed(training.step)
        finally:
            end()

    trainings = {v: Training(size, low=None if v == "fp64" else torch.bfloat16, kernels=kernels) for v in variants}
    return {v: lambda v=v, t=t: run(t, v) for v, t in trainings.items()}


def step_part(outcome: Outcome, size: Size, repeat: int, judged: bool) -> None:
    """An audited training step against a plain one and one in fp64."""
    for kernels in ("native", "fast") if native_half_is_slow(torch.bfloat16) else ("native",):
        medians = interleaved(steps_of(size, ["plain", "fp64", *STEP_LIMITS], kernels), repeat)
        base = [medians["plain"][k] + medians["fp64"][k] for k in (0, 1)]
        rows = []
        for variant, (cpu, wall) in medians.items():
            ratio = "-"
            name = f"step, {kernels} kernels, {variant}"
            if variant in STEP_LIMITS:
                binding = judged and kernels == "native" and variant != "bare"
                ratio = outcome.judge(f"{name}: CPU time over plain + fp64", cpu / base[0], STEP_LIMITS[variant], binding)
            rows.append([variant, f"{cpu:.3f}", f"{wall:.3f}", ratio, f"{wall / base[1]:.3f}"])
            outcome.numbers[f"{name}: seconds"] = {"cpu": cpu, "wall": wall}
        table([f"step, {kernels} bf16 kernels", "CPU s", "wall s", "CPU ratio to plain + fp64", "wall ratio"], rows)


def fixed_part(outcome: Outcome, judged: bool, adds: int) -> None:
    """The fixed cost an op: additions of 16 elements, on one thread, in batches that take turns.

    Judged by the lower quartile of the batches, which a busy machine disturbs least; the median is printed beside.
    """
    batch = 100

    def cost(dtype: torch.dtype, variant: str) -> list[float]:
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(16, generator=generator).to(dtype) for _ in range(2))
        end = pl.audit(preset=variant).start().stop if variant in FIXED_LIMITS else lambda: None
        costs = []
        for _ in range(11):
            start = time.thread_time()
            for _ in range(batch):
                x + y
            costs.append((time.thread_time() - start) / batch * 1e6)
        end()
        return costs[1:]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        taken: dict[str, list[float]] = {"plain": [], **{preset: [] for preset in FIXED_LIMITS}}
        for _ in range(max(1, adds // (10 * batch))):
            for variant, costs in taken.items():
                costs.extend(cost(dtype, variant))
        quartiles = {variant: statistics.quantiles(costs, n=4) for variant, costs in taken.items()}
        cells = [f"{quartiles['plain'][0]:.2f}"]
        for preset, limit in FIXED_LIMITS.items():
            verdict = outcome.judge(f"fixed cost, {name}, {preset}: us an op", quartiles[preset][0], limit, judged)
            cells.append(f"{verdict}, median {quartiles[preset][1]:.0f}")
        rows.append([name, *cells])
    torch.set_num_threads(threads)
    table([f"{adds} additions of 16 elements", "plain us an op", *(f"{p} us an op" for p in FIXED_LIMITS)], rows)


def peak_memory(name: str, size: Size) -> dict[str, float]:
    """In this process: MiB resident before the model is made, and at most during two steps."""
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    pl.audit(preset="standard").start().stop()  # loads what an audit loads
    from precisionlab.shadow.measure import measure

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        measure(torch.ones(2, dtype=dtype), torch.ones(2, dtype=torch.float64))
    before = _status("VmRSS")
    training = Training(size, low=None if name == "fp64" else torch.bfloat16)
    end = training.begin(name)
    for _ in range(2):
        training.step()
    peak = _status("VmHWM")
    end()
    return {"before": before, "peak": peak}


def _status(field_name: str) -> float:
    """A line of /proc/self/status in MiB; where there is none, the peak that getrusage knows."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field_name + ":"))


def memory_part(outcome: Outcome, judged: bool, small: bool) -> None:
    """Peak resident memory, each variant in its own process, above what Python, torch and the audit's own code take."""
    peaks = {}
    for name in ("plain", "fp64", "bare", "quick", "standard"):
        words = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--child", name, *(["--quick"] if small else [])]
        peaks[name] = json.loads(subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(f"  {name}: {peaks[name]}", file=sys.stderr, flush=True)
    net = {name: p["peak"] - p["before"] for name, p in peaks.items()}
    base = net["plain"] + net["fp64"]
    rows = []
    for name, p in peaks.items():
        ratio = "-"
        if name in STEP_LIMITS:
            ratio = outcome.judge(f"memory {name}: peak over plain + fp64", net[name] / base, MEMORY_LIMIT, judged and name != "bare")
        rows.append([name, f"{p['peak']:.0f}", f"{net[name]:.0f}", ratio])
    table(["memory", "peak MiB", "above start MiB", "ratio to plain + fp64"], rows)


def fast_part(outcome: Outcome, size: Size, judged: bool) -> None:
    """``audit --dtype fp16 --kernels fast``, one step with everything around it, against a native fp16 step alone."""
    training = Training(size, low=torch.float16)
    native = timed(training.step)
    subject = pl.Subject(
        model=lambda: GPT(size),
        batch=lambda step: tokens_of(size),
        loss=loss_of,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
    )
    audits = {
        preset: timed(lambda p=preset: pl.audit_subject(subject, dtype="fp16", steps=1, kernels="fast", preset=p))
        for preset in FIXED_LIMITS
    }
    rows = [["native fp16 step", f"{native[0]:.2f}", f"{native[1]:.2f}", "-"]]
    for preset, (cpu, wall) in audits.items():
        ratio = outcome.judge(f"fast {preset}: CPU time over a native fp16 step", cpu / native[0], FAST_LIMIT, judged)
        rows.append([f"audit --dtype fp16 --kernels fast, {preset}", f"{cpu:.2f}", f"{wall:.2f}", ratio])
    table(["fp16", "CPU s", "wall s", "ratio"], rows)


def growth_part(outcome: Outcome, repeat: int, judged: bool) -> None:
    """How the audited step grows with depth and with tokens (more sequences: attention itself is quadratic in their length)."""
    start = Size(width=64, depth=2, vocabulary=512, sequences=4, length=64)
    for axis, values in (("depth", (2, 4, 8, 16)), ("sequences", (4, 8, 16, 32))):
        sizes = {value: Size(**{**asdict(start), axis: value}) for value in values}
        runs = {}
        for value, size in sizes.items():
            for name, run in steps_of(size, ["plain", "fp64", *FIXED_LIMITS]).items():
                runs[f"{name} {value}"] = run
        medians = interleaved(runs, repeat)
        rows = []
        for value in values:
            base = medians[f"plain {value}"][0] + medians[f"fp64 {value}"][0]
            audited = [medians[f"{preset} {value}"][0] for preset in FIXED_LIMITS]
            rows.append([str(value), f"{base:.3f}", *(f"{a:.3f} ({a / base:.2f})" for a in audited)])
        table([f"{axis}", "plain + fp64 CPU s", *(f"{p} CPU s (ratio)" for p in FIXED_LIMITS)], rows)
        for preset in FIXED_LIMITS:
            exponent = _slope(list(values), [medians[f"{preset} {value}"][0] for value in values])
            print(f"{preset}: cost ~ {axis}^{outcome.judge(f'growth {preset} with {axis}: exponent', exponent, GROWTH_LIMIT, judged)}")
        print()


def _slope(sizes: list[int], costs: list[float]) -> float:
    """Exponent fitted to all but the smallest size, where constant shares weigh most."""
    return statistics.linear_regression([math.log(s) for s in sizes[1:]], [math.log(c) for c in costs[1:]]).slope


def start_part(outcome: Outcome, repeat: int, judged: bool) -> None:
    """Import and ``--help``: processor seconds of a child process, the least of several, and that torch stays out."""
    programs = {
        "python -c pass": ["-c", "pass"],
        "import precisionlab": ["-c", "import precisionlab, sys; assert 'torch' not in sys.modules, 'torch was imported'"],
        "precisionlab --help": ["-c", "import sys; sys.argv = ['precisionlab', '--help']\nfrom precisionlab.cli.app import main\n"
                                "try: main()\nfinally: assert 'torch' not in sys.modules, 'torch was imported'"],
        "precisionlab explain PL101": ["-m", "precisionlab", "explain", "PL101"],
    }  # fmt: skip
    rows = []
    for name, words in programs.items():
        cpus, walls = [], []
        for _ in range(max(repeat, 5)):
            before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            walls.append(time.perf_counter() - wall)
            cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        cell = outcome.judge(f"start, {name}: CPU s", min(cpus), START_LIMIT, judged) if name in START_JUDGED else f"{min(cpus):.3f}"
        rows.append([name, cell, f"{min(walls):.3f}"])
    table(["start", "CPU s", "wall s"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and few repetitions: does it run, not how fast")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeat", type=int, default=None, help="rounds whose median counts (default 5, with --quick 2)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    size = SMALL if options.quick else FULL
    if options.child:
        print(json.dumps(peak_memory(options.child, size)))
        return 0
    repeat, judged, outcome = options.repeat or (2 if options.quick else 5), not options.quick, Outcome()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads, {size}, load {load:.1f}\n")
    parts: dict[str, Callable[[], None]] = {
        "step": lambda: step_part(outcome, size, repeat, judged),
        "fixed": lambda: fixed_part(outcome, judged, 1000 if options.quick else 10_000),
        "memory": lambda: memory_part(outcome, judged, options.quick),
        "fast": lambda: fast_part(outcome, size, judged),
        "growth": lambda: growth_part(outcome, repeat, judged),
        "start": lambda: start_part(outcome, repeat, judged),
    }
    for name in options.only:
        parts[name]()
    if options.json:
        options.json.write_text(json.dumps({"missed": outcome.missed, "numbers": outcome.numbers}, indent=1) + "\n")
    print("\n".join(f"missed: {text}" for text in outcome.missed) or "every judged limit is kept")
    return 1 if outcome.missed else 0


if __name__ == "__main__":
    sys.exit(main())
