"""``precisionlab run``: unmodified scripts in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import typer.main

from precisionlab.cli.app import app

RUN_FLAGS = {
    "--all", "--debug", "--every", "--fail-on", "--force", "--format", "--min-coverage", "--module", "--output", "--preset", "--quiet",
    "--resync", "--set", "--steps", "--target", "-f", "-m", "-o", "-q",
}  # fmt: skip

DIGITS = """
    import argparse, hashlib, pickle, sys
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10))
        def forward(self, x):
            return self.body(x)

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=6)
        parser.add_argument("--workers", type=int, default=0)
        args = parser.parse_args()
        torch.manual_seed(0)
        x, y = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
        net = Net(32)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        for step, (a, b) in enumerate(DataLoader(data, batch_size=32, shuffle=True, num_workers=args.workers)):
            if step == args.steps:
                break
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(net(a), b)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            print(step, loss.item().hex(), norm.item().hex())
        weights = b"".join(v.numpy().tobytes() for v in pickle.loads(pickle.dumps(net)).state_dict().values())
        print(hashlib.sha256(weights).hexdigest(), sys.argv[1:], torch.rand(1).item().hex())
"""


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def python(*words: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=env, cwd=folder, timeout=300)


def run(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "precisionlab", "run", *words, folder=folder)


def test_flags_of_run_are_frozen() -> None:
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    assert {flag for option in command.params for flag in option.opts if flag.startswith("-")} == RUN_FLAGS, "a flag is a promise"


def test_training_script_is_bit_identical_and_its_stdout_undisturbed(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script(tmp_path, DIGITS)
    plain = python("train.py", "--workers", "2", folder=tmp_path)
    audited = run("train.py", "--workers", "2", folder=tmp_path)
    assert plain.returncode == 0 and audited.returncode == 0, audited.stderr
    assert audited.stdout == plain.stdout
    assert "SAFE" in audited.stderr and "coverage" in audited.stderr and "internal error" not in audited.stderr
    chosen = run("--steps", "2:4", "-o", "report.json", "-m", "train", "--workers", "2", folder=tmp_path)
    assert chosen.stdout == plain.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [step["index"] for step in report["steps"]] == [2, 3] and report["optimizer_steps"] == 6
    assert report["settings"]["command"] == "precisionlab run --steps 2:4 -m train --workers 2"


@pytest.mark.slow
def test_script_sees_what_python_would_give_it(tmp_path: Path) -> None:
    text = """
        import os, pickle, sys
        class Thing: pass
        print(__name__, os.path.basename(__file__), os.path.isabs(__file__), sys.argv, os.path.basename(sys.path[0]), __package__, __spec__)
        print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, sys.modules["__main__"].Thing is Thing, __builtins__)
    """
    script(tmp_path, text)
    for words in (["train.py", "--lr", "1", "-q", "--", "-x"], [tmp_path / "train.py"]):
        assert run(*words, folder=tmp_path).stdout == python(*words, folder=tmp_path).stdout


@pytest.mark.slow
def test_package_folder_and_zip_run_as_python_runs_them(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    script(tmp_path / "pkg", "import sys; print(__name__, __package__, [a for a in sys.argv[1:]], sys.path[0][-5:])", "__main__.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(tmp_path / "pkg" / "__main__.py", "__main__.py")
    for words in (["-m", "pkg", "a", "--b"], ["pkg", "a"], ["app.zip", "--steps"]):
        assert run(*words, folder=tmp_path).stdout == python(*words, folder=tmp_path).stdout != ""


HALF = "import torch\nx = torch.full((4,), 300.0).half()\ny = x * x\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 1), ("import sys; sys.exit(7)", 7), ("import sys; sys.exit('no')", 1), ("import os; print(end='', flush=True); os._exit(5)", 5)],
)
def test_own_exit_code_of_the_script_wins_over_findings(ending: str, code: int, tmp_path: Path) -> None:
    script(tmp_path, HALF + ending)
    done = run("train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert "BROKEN PL101" in done.stderr


def test_crash_prints_the_scripts_own_traceback_and_still_reports(tmp_path: Path) -> None:
    script(tmp_path, HALF + "def f(x):\n    return x @ torch.ones(7, 7)\nf(x.float())\n")
    plain = python("train.py", folder=tmp_path)
    audited = run("-q", "-o", "report.json", "train.py", folder=tmp_path)
    assert audited.returncode == plain.returncode == 1
    assert audited.stderr.startswith(plain.stderr) and plain.stderr.startswith("Traceback")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"][0]["code"] == "PL101" and report["error"].startswith("RuntimeError: mat1")


def test_ctrl_c_writes_what_there_is_and_is_130(tmp_path: Path) -> None:
    script(tmp_path, HALF + "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    done = run("train.py", folder=tmp_path)
    assert done.returncode == 128 + signal.SIGINT
    assert "BROKEN PL101" in done.stderr and "interrupted; the report covers what ran" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_report_path_is_resolved_before_the_script_changes_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    script(tmp_path, HALF + "import os\nos.chdir('elsewhere')\n")
    assert run("-o", "report.json", "--fail-on", "never", "train.py", folder=tmp_path).returncode == 0
    assert (tmp_path / "report.json").exists()
    again = run("-o", "report.json", "train.py", folder=tmp_path)
    assert again.returncode == 2 and "report.json exists" in again.stderr
    assert run("-f", "-o", "report.json", "train.py", folder=tmp_path).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("print('no torch')", 3, "ran no floating-point op"),
        ("x = = 1", 1, "does not compile; nothing ran"),
        (
            "import torch\nw = torch.ones(2, requires_grad=True)\nopt = torch.optim.SGD([w], 0.1)\nw.sum().backward()\nopt.step()",
            3,
            "took 1 optimizer steps, and none of those to observe",
        ),
    ],
)
def test_nothing_to_judge_is_said(text: str, code: int, said: str, tmp_path: Path) -> None:
    script(tmp_path, text)
    done = run("--steps", "5:9", "train.py", folder=tmp_path)
    assert done.returncode == code and said in done.stderr and "internal error" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.py"], "there is no file none.py"),
        (["-m", "none.such"], "there is no module none.such"),
        (["--format", "json", "train.py"], "needs a file"),
        (["--steps", "x", "train.py"], "--steps cannot be 'x'"),
        (["empty"], "without a __main__.py"),
    ],
)
def test_wrong_use_is_2_and_says_what_to_try(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    script(tmp_path, "")
    done = run(*words, folder=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "try:" in done.stderr


HOSTILE = """
    import multiprocessing as mp, os, threading, torch
    from torch import nn

    def child(queue, t):
        queue.put(float((t * 2).sum()))

    if __name__ == "__main__":
        for how in ("fork", "spawn"):
            context = mp.get_context(how)
            queue = context.Queue()
            process = context.Process(target=child, args=(queue, torch.ones(3)))
            process.start()
            print(how, queue.get(timeout=60))
            process.join()
        if os.fork() == 0:
            print("a child that runs to the end of the script", flush=True)
        else:
            os.wait()
            torch.manual_seed(0)
            nets = [nn.Linear(4, 4), nn.Linear(4, 2)]
            kinds = (torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW)
            optimizers = [kind(nets[i % 2].parameters(), 1e-2) for i, kind in enumerate(kinds)]
            def train():
                for _ in range(3):
                    nets[1](nets[0](torch.ones(2, 4))).sum().backward()
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
            train()
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()
            for _ in range(3):
                try:
                    nets[0](torch.ones(2, 7))
                except Exception:
                    print("swallowed")
            print([p.sum().item().hex() for net in nets for p in net.parameters()])
"""


@pytest.mark.slow
def test_forks_spawns_threads_many_optimizers_and_swallowed_errors_end_in_one_report(tmp_path: Path) -> None:
    script(tmp_path, HOSTILE)
    plain = python("train.py", folder=tmp_path)
    done = run("train.py", folder=tmp_path)
    assert done.stdout == plain.stdout and done.returncode == 0, done.stderr
    assert done.stderr.count("coverage") == 1 and "1 other threads" in done.stderr


SLEEPS = """
import os, signal, sys, time
print("half done", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def test_sigterm_writes_the_report_and_still_ends_the_process(tmp_path: Path) -> None:
    script(tmp_path, HALF + SLEEPS)
    done = run("-o", "report.json", "train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "half done\n")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"][0]["code"] == "PL101" and "SIGTERM ended the script after 0 optimizer steps" in report["notes"]
    assert "is ended by SIGTERM" in done.stderr and "internal error" not in done.stderr


@pytest.mark.slow
def test_script_that_handles_sigterm_itself_goes_on(tmp_path: Path) -> None:
    script(tmp_path, HALF + "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('saved'))\n" + SLEEPS.replace("60", "0"))
    done = run("train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "half done\nsaved\n")
    assert "BROKEN PL101" in done.stderr and "SIGTERM" not in done.stderr


@pytest.mark.slow
def test_forked_child_dies_of_sigterm_without_a_report(tmp_path: Path) -> None:
    text = (
        HALF
        + """
import os, signal, time
child = os.fork()
if child == 0:
    time.sleep(20)
    os._exit(0)
os.kill(child, signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
    )
    script(tmp_path, text)
    done = run("train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, f"{int(signal.SIGTERM)}\n")
    assert done.stderr.count("coverage") == 1


@pytest.mark.slow
def test_script_that_never_steps_is_judged_and_the_missing_step_is_said(tmp_path: Path) -> None:
    text = """
        import torch
        net = torch.nn.Linear(4, 4).bfloat16()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 4).bfloat16()).float().sum().backward()
    """
    script(tmp_path, text)
    done = run("train.py", folder=tmp_path)
    assert done.returncode == 0 and "SAFE" in done.stderr
    assert "no optimizer stepped" in " ".join(done.stderr.split())


RANKS = """
    import torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x).float().square().mean()
        loss.backward()
        optimizer.step()
    with open(f"weights{rank}", "w") as file:
        print([p.sum().item().hex() for p in net.parameters()], file=file)
    if rank == 1:
        y = torch.full((4,), 300.0).half() ** 2
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_every_rank_under_torchrun_writes_its_report_and_only_the_first_prints(tmp_path: Path) -> None:
    script(tmp_path, RANKS)
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    plain = python(*launch, "train.py", folder=tmp_path)
    assert plain.returncode == 0, plain.stderr
    weights = [(tmp_path / f"weights{rank}").read_text() for rank in (0, 1)]
    done = python(*launch, "-m", "precisionlab", "run", "--fail-on", "never", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"weights{rank}").read_text() for rank in (0, 1)] == weights
    reports = [json.loads((tmp_path / f"precisionlab-train.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [r["settings"]["rank"] for r in reports] == ["0 of 2", "1 of 2"]
    assert [r["verdict"] for r in reports] == ["safe", "broken"] and all(r["optimizer_steps"] == 3 for r in reports)
    assert done.stderr.count("coverage  ") == 1 and done.stderr.count("precisionlab: running") == 1 and "PL101" not in done.stderr


@pytest.mark.slow
def test_rank_that_fails_first_does_not_cost_the_others_their_report(tmp_path: Path) -> None:
    script(tmp_path, RANKS.replace("rank == 1", "True").replace("dist.destroy", "import time; time.sleep(2 * rank)\n    dist.destroy"))
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "precisionlab", "run", "-o", "report.json")
    done = python(*launch, "train.py", folder=tmp_path)
    assert done.returncode != 0
    for rank in (0, 1):
        assert json.loads((tmp_path / f"report.rank{rank}.json").read_text())["verdict"] == "broken"
