"""Public training scripts, unmodified, plainly and under ``precisionlab run``: the same output, the same weights, and what it says.

    ./dev bench scripts --sources FOLDER [--packages FOLDER] [--only NAME] [--keep FOLDER]

``--sources`` holds checkouts of the repositories; nothing of them is kept here. The figures of the README are of these commits:
    git clone https://github.com/karpathy/nanoGPT                       3adf61e (MIT)
    git clone https://github.com/pytorch/examples                       77f55b9 (BSD-3-Clause)
    git clone https://github.com/huggingface/pytorch-image-models       aa4b585 (Apache-2.0)
The last two need torchvision, which must not replace torch; ``--packages`` is a folder that goes on the path of the scripts:
    pip install --no-deps --target FOLDER torchvision==0.28.0 pillow pyyaml safetensors 'huggingface_hub<1' tqdm requests

Each script runs in a fresh copy of its checkout, on small real data in the format it reads (scikit-learn's digits, the standard
library's source), for a few steps, one thread, every op of every step observed (preset standard). Both runs see the same paths. What
must be equal, bit for bit: stdout (and stderr before the report, where the script logs there) but for the timings it prints, and every
tensor of the file it saves. Ratio: CPU time audited over plain, both with starting Python and importing torch. Exit 1 when anything
differs, a script fails, or the verdict is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from bench.healthy import chosen

ROOT = Path(__file__).resolve().parents[1]

LET_TORCHVISION_IMPORT = """
import torch
_library = torch.library.Library("torchvision", "DEF")  # PyPI's torchvision beside a CPU build of torch lacks its own
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def stdlib_source(size: int) -> bytes:
    """The first ``size`` bytes of the standard library's modules in the order of their names."""
    pieces = (path.read_bytes() for path in sorted(Path(argparse.__file__).parent.glob("[a-z]*.py")))
    out = b""
    while len(out) < size:
        out += next(pieces)
    return out[:size]


def digit_pictures(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits enlarged and padded to ``[n, side, side]`` in 0..255, and their labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    small = (found.images * (255 / 16)).astype(np.uint8)
    large = np.kron(small, np.ones((1, side // 8, side // 8), dtype=np.uint8))
    edge = (side - large.shape[1]) // 2
    return np.pad(large, ((0, 0), (edge, edge), (edge, edge))), found.target.astype(np.uint8)


def write_nanogpt(folder: Path) -> None:
    """``data/stdlib``: bytes as uint16 tokens, and the size of the vocabulary."""
    data = folder / "data" / "stdlib"
    data.mkdir(parents=True)
    tokens = np.frombuffer(stdlib_source(60_000), dtype=np.uint8).astype(np.uint16)
    tokens[:50_000].tofile(data / "train.bin")
    tokens[50_000:].tofile(data / "val.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))


def write_words(folder: Path) -> None:
    """``data/stdlib``: three text files of Python source."""
    data = folder / "data" / "stdlib"
    data.mkdir(parents=True)
    text = stdlib_source(16_000)
    for name, part in (("train", text[:8_000]), ("valid", text[8_000:12_000]), ("test", text[12_000:])):
        (data / f"{name}.txt").write_bytes(part)


def write_mnist(folder: Path) -> None:
    """``../data/MNIST/raw``: the IDX files that torchvision's MNIST looks for; 256 pictures to train on, 100 to test."""
    raw = folder.parent / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images, labels = digit_pictures(28)
    for name, part in (("train", slice(0, 256)), ("t10k", slice(256, 356))):
        x, y = images[part], labels[part]
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, *x.shape) + x.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(y)) + y.tobytes())


def write_image_folder(folder: Path) -> None:
    """``digits/train/3/17.png`` and the like: 80 pictures of 32 x 32 to train on, 20 to validate."""
    images, labels = digit_pictures(32)
    for i in range(100):
        path = folder / "digits" / ("train" if i < 80 else "validation") / str(labels[i]) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(np.repeat(images[i][..., None], 3, axis=-1)))


def png(pixels: np.ndarray) -> bytes:
    """An RGB picture ``[height, width, 3]`` as PNG (ISO/IEC 15948)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@dataclass(frozen=True)
class PublicScript:
    """A script of a checkout, its arguments, its data, the file it saves, and the timings it prints (regular expressions)."""

    name: str
    checkout: str
    folder: str
    arguments: tuple[str, ...]
    prepare: Callable[[Path], None]
    saved: str
    timings: tuple[str, ...] = ()
    script: str = "train.py"
    logs_to_stderr: bool = False


SCRIPTS = (
    PublicScript(
        "nanoGPT",
        "nanoGPT",
        ".",
        (
            *("--device=cpu", "--dtype=bfloat16", "--compile=False", "--dataset=stdlib", "--eval_iters=2", "--eval_interval=6"),
            *("--block_size=32", "--batch_size=4", "--n_layer=2", "--n_head=2", "--n_embd=32", "--gradient_accumulation_steps=4"),
            *("--warmup_iters=3", "--max_iters=6", "--lr_decay_iters=6"),
        ),
        write_nanogpt,
        "out/ckpt.pt",
        (r"time [\d.]+ms, mfu -?[\d.]+%",),
    ),
    PublicScript(
        "word_language_model",
        "examples",
        "word_language_model",
        (
            *("--data", "data/stdlib", "--model", "LSTM", "--emsize", "32", "--nhid", "32", "--batch_size", "4", "--epochs", "2"),
            *("--log-interval", "3", "--tied"),
        ),
        write_words,
        "model.pt",
        (r"ms/batch +[\d.]+", r"time: +[\d.]+s"),
        "main.py",
    ),
    PublicScript(
        "mnist",
        "examples",
        "mnist",
        ("--epochs", "2", "--batch-size", "32", "--log-interval", "1", "--save-model"),
        write_mnist,
        "mnist_cnn.pt",
        (),
        "main.py",
    ),
    PublicScript(
        "timm",
        "pytorch-image-models",
        ".",
        (
            *("--data-dir", "digits", "--model", "resnet10t", "--num-classes", "10", "--img-size", "32", "--batch-size", "16"),
            *("--epochs", "2", "--device", "cpu", "--amp", "--amp-dtype", "bfloat16", "--opt", "adamw", "--lr", "1e-3", "--workers", "2"),
            *("--model-ema", "--clip-grad", "1.0", "--warmup-epochs", "1", "--log-interval", "1", "--experiment", "digits"),
        ),
        write_image_folder,
        "output/train/digits/last.pth.tar",
        (r"Time: .*?LR:", r"Time: +[\d.]+ \( *[\d.]+\)", r"Data: +[\d.]+ \([\d.]+\)"),
        logs_to_stderr=True,
    ),
)


@dataclass
class Ran:
    """One run of a script."""

    code: int
    stdout: str
    stderr: str
    saved: Any
    cpu_s: float


def run(script: PublicScript, source: Path, place: Path, environment: dict[str, str], *prefix: str) -> Ran:
    """Run ``script`` in a fresh copy of ``source`` at ``place``, as ``python PREFIX script.py ARGUMENTS``."""
    if place.parent.exists():
        shutil.rmtree(place.parent)
    shutil.copytree(source, place, ignore=lambda folder, names: {".git", "data"} & set(names) if Path(folder) == source else set())
    script.prepare(place)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *prefix, script.script, *script.arguments], cwd=place, env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return Ran(done.returncode, done.stdout, done.stderr, load(place / script.saved), cpu)


def load(path: Path) -> Any:
    """What a script saved; its bytes where it holds objects of the script's own classes; None where there is no file."""
    if not path.exists():
        return None
    try:
        return torch.load(path, weights_only=False, map_location="cpu")
    except (ModuleNotFoundError, AttributeError):
        return path.read_bytes()


def without_timings(script: PublicScript, text: str) -> str:
    """``text`` with the script's timings masked."""
    for pattern in script.timings:
        text = re.sub(pattern, "<time>", text)
    return text


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two saved objects differ; tensors and numbers bit for bit (NaN equals itself)."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        return [] if same else [path]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [found for i, (x, y) in enumerate(zip(a, b, strict=True)) for found in differences(x, y, f"{path}[{i}]")]
    return [] if a == b or repr(a) == repr(b) else [path]


def tensors_in(saved: Any) -> int:
    """How many tensors a saved object holds."""
    if isinstance(saved, torch.Tensor):
        return 1
    parts = saved.values() if isinstance(saved, dict) else saved if isinstance(saved, (list, tuple)) else ()
    return sum(tensors_in(part) for part in parts)


def compare(script: PublicScript, sources: Path, keep: Path, environment: dict[str, str]) -> list[str]:
    """Run a script both ways, print its row, and return what is wrong."""
    source, place, report_file = (
        sources / script.checkout / script.folder,
        keep / script.name / "work" / "copy",
        keep / f"{script.name}.json",
    )
    if not (source / script.script).exists():
        print(f"{script.name:22}skipped: there is no {source / script.script}", flush=True)
        return []
    plain = run(script, source, place, environment)
    if plain.code:
        print(f"{script.name:22}the script itself fails: {plain.stderr.strip().splitlines()[-1:]}", flush=True)
        return [f"{script.name}: exit code {plain.code} without an audit"]
    flags = ("-m", "precisionlab", "run", "-q", "-f", "-o", str(report_file), "--fail-on", "never")
    audited = run(script, source, place, environment, *flags)
    wrong = [f"exit code {audited.code}: {audited.stderr[-300:]}"] if audited.code else []
    streams = [("stdout", plain.stdout, audited.stdout)]
    if script.logs_to_stderr:
        streams.append(
            ("stderr", plain.stderr, "".join(f"{x}\n" for x in audited.stderr.splitlines() if not x.startswith("precisionlab:")))
        )
    wrong += [f"{name} differs" for name, a, b in streams if without_timings(script, a) != without_timings(script, b)]
    if plain.saved is None:
        wrong.append(f"{script.saved} was not saved")
    else:
        wrong += [f"saved {name} differs" for name in differences(plain.saved, audited.saved)[:5]]
    report = json.loads(report_file.read_text()) if report_file.exists() else {"verdict": "none", "coverage": {}, "findings": []}
    coverage = report["coverage"]
    what = f"{len(plain.saved)} bytes" if isinstance(plain.saved, bytes) else f"{tensors_in(plain.saved)} tensors"
    print(
        f"{script.name:22}{report.get('optimizer_steps', 0):6}{coverage.get('ops', 0):8}{coverage.get('shadowed', 0):9}{plain.cpu_s:9.1f}"
        f"{audited.cpu_s / plain.cpu_s:7.2f}  {report['verdict']:9}{what:14}{'; '.join(wrong) or 'identical'}"
    )
    for finding in report["findings"]:
        print(f"  {finding['verdict']} {finding['code']} {finding['op']} {finding['source']} x{finding['count']}: {finding['message']}")
    for name, count in coverage.get("unshadowed", {}).items():
        print(f"  not shadowed: {name} x{count}")
    for note in report.get("notes", []):
        print(f"  note: {note}")
    sys.stdout.flush()
    return [f"{script.name}: {x}" for x in wrong] + ([f"{script.name}: broken"] if report["verdict"] == "broken" else [])


def main(words: list[str] | None = None) -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="bench.scripts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True, help="folder with the checkouts")
    parser.add_argument("--packages", type=Path, help="folder with torchvision and what else the scripts import")
    parser.add_argument("--only", action="append", default=[], help="scripts: a glob or a piece of the name; may be repeated")
    parser.add_argument("--keep", type=Path, help="keep the working folders and reports there")
    options = parser.parse_args(words)
    head = f"{'script':22}{'steps':>6}{'ops':>8}{'shadowed':>9}{'plain s':>9}{'ratio':>7}  {'verdict':9}{'saved':14}output and weights"
    print(head, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        keep = (options.keep or Path(temporary)).resolve()
        site = Path(temporary) / "site"
        site.mkdir()
        path = [str(ROOT)]
        if options.packages:
            (site / "sitecustomize.py").write_text(LET_TORCHVISION_IMPORT)
            path = [str(site), str(options.packages.resolve()), *path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        wrong = [
            found
            for script in SCRIPTS
            if chosen(script.name, options.only)
            for found in compare(script, options.sources.resolve(), keep, environment)
        ]
    print("\n".join(["", *wrong]) if wrong else "\nevery script: same output, same weights, not broken")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
