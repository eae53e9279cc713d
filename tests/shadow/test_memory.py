"""The invariants of shadow memory, as properties over random programs of views, writes, frees and replaced storages."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import precisionlab as pl
from precisionlab.shadow.memory import ShadowMemory
from precisionlab.shadow.mode import ShadowMode
from precisionlab.shadow.sites import Locator, ModuleStack

Tensor = torch.Tensor
HALVES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32])
VIEWS = st.sampled_from(["whole", "transposed", "row", "column", "flat", "every other", "expanded"])


def shadowing(max_bytes: int | None = None) -> tuple[ShadowMemory, ShadowMode]:
    """A memory and a mode over it that measures nothing."""
    memory = ShadowMemory(max_bytes)
    return memory, ShadowMode(memory, Locator(ModuleStack()), None)


def view_of(t: Tensor, kind: str) -> Tensor:
    return {
        "whole": lambda: t.view_as(t),
        "transposed": lambda: t.t(),
        "row": lambda: t[1],
        "column": lambda: t[:, 1],
        "flat": lambda: t.reshape(-1) if t.is_contiguous() else t,
        "every other": lambda: t[::2, 1:],
        "expanded": lambda: t[:1].expand(3, *t.shape[1:]),
    }[kind]()


def twin(memory: ShadowMemory, t: Tensor) -> Tensor | None:
    with torch._C._DisableTorchDispatch():
        found = memory.get(t)
        return None if found is None else memory.window(t, found).clone()


class Programs(RuleBasedStateMachine):
    """Runs each statement twice: on half tensors under the mode, and in fp64 with the same views on fp64 storages.

    ``model`` maps the name of a tensor to its fp64 counterpart, made by the same statements; the twin must always equal it, or, once
    it restarted from the real value, that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.mode = shadowing()
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def run(self, statement: object, *operands: Tensor) -> Tensor:
        with self.mode, torch.no_grad():
            return statement(*operands)  # type: ignore[operator]

    def pick(self, index: int) -> tuple[Tensor, Tensor]:
        return self.pairs[index % len(self.pairs)]

    @rule(dtype=HALVES, seed=st.integers(0, 99))
    def create(self, dtype: torch.dtype, seed: int) -> None:
        exact = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        self.pairs.append((self.run(lambda: exact.to(dtype)), exact.clone()))

    @precondition(lambda self: self.pairs)
    @rule(index=st.integers(0, 30), kind=VIEWS)
    def take_a_view(self, index: int, kind: str) -> None:
        lo, hi = self.pick(index)
        if lo.dim() == 2 and lo.shape == (4, 3):
            self.pairs.append((self.run(lambda t: view_of(t, kind), lo), view_of(hi, kind)))

    @precondition(lambda self: self.pairs)
    @rule(index=st.integers(0, 30), factor=st.sampled_from([0.5, -1.25, 3.0]))
    def write_in_place(self, index: int, factor: float) -> None:
        lo, hi = self.pick(index)
        if all(s for s in lo.stride()):
            self.run(lambda t: t.mul_(factor).add_(0.375), lo)
            hi.mul_(factor).add_(0.375)

    @precondition(lambda self: self.pairs)
    @rule(index=st.integers(0, 30))
    def compute(self, index: int) -> None:
        lo, hi = self.pick(index)
        self.pairs.append((self.run(lambda t: torch.tanh(t) * 1.5, lo), torch.tanh(hi) * 1.5))

    @precondition(lambda self: self.pairs)
    @rule(index=st.integers(0, 30), dtype=HALVES)
    def cast(self, index: int, dtype: torch.dtype) -> None:
        lo, hi = self.pick(index)
        self.pairs.append((self.run(lambda t: t.to(dtype, copy=True), lo), hi.clone()))

    @precondition(lambda self: self.pairs)
    @rule(index=st.integers(0, 30))
    def write_behind_our_back(self, index: int) -> None:
        lo, hi = self.pick(index)
        if all(s for s in lo.stride()):
            with torch.no_grad():
                lo.add_(7.0).mul_(0.5)
            # the whole storage restarts from the real values
            for other, exact in self.pairs:
                if other.untyped_storage()._cdata == lo.untyped_storage()._cdata:
                    exact.copy_(other) if all(s for s in other.stride()) else None
            hi.copy_(lo)

    @precondition(lambda self: self.pairs)
    @rule(index=st.integers(0, 30))
    def free(self, index: int) -> None:
        del self.pairs[index % len(self.pairs)]

    @invariant()
    def twins_equal_the_fp64_program(self) -> None:
        for lo, hi in self.pairs:
            found = twin(self.memory, lo)
            if found is not None:
                # kernels take elements one by one or in vectors, as the memory lies
                torch.testing.assert_close(found, hi, rtol=1e-13, atol=0.0)

    @invariant()
    def twins_are_no_more_than_living_storages(self) -> None:
        assert len(self.memory) <= len({lo.untyped_storage()._cdata for lo, _ in self.pairs})
        assert self.memory.bytes >= 0

    def teardown(self) -> None:
        self.pairs.clear()
        assert len(self.memory) == 0
        assert self.memory.bytes == 0


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))


def test_two_views_of_one_storage_read_one_twin() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.randn(4, 4, dtype=torch.float64).half()
        row, column = x[1], x[:, 2]
    assert memory.get(row) is memory.get(column) is memory.get(x)


def test_a_write_through_one_view_is_read_through_another() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.zeros(4, 4).half() + 1.0
        x[1].mul_(1 / 3)
        column = x[:, 2]
    assert twin(memory, column).tolist() == [1.0, 1 / 3, 1.0, 1.0]


def test_an_unseen_write_restarts_the_twin_and_is_counted() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.ones(3).half() / 3
    x.add_(1.0).add_(1.0)
    with mode:
        y = x * 1.0
    assert torch.equal(twin(memory, y), x.double())
    assert memory.resyncs == {"written outside the audit": 1}


def test_a_reused_address_never_revives_a_twin() -> None:
    memory, mode = shadowing()
    for _ in range(50):
        with mode:
            x = torch.full((64,), 2.0).half() / 3
        key = x.untyped_storage()._cdata
        del x
        assert key not in memory._twins
        fresh = torch.zeros(64).half()
        assert memory.get(fresh) is None


def test_a_numpy_write_that_changes_what_the_next_op_reads_is_not_seen_by_the_version_counter() -> None:
    """Known limit: numpy shares memory without a version counter. The next op that writes or measures shows it as drift."""
    memory, mode = shadowing()
    with mode:
        x = torch.ones(3)
        y = x * 1.0
    y.numpy()[:] = 5.0
    assert twin(memory, y).tolist() == [1.0, 1.0, 1.0]


def test_data_assignment_moves_a_parameter_to_the_twin_of_its_new_storage() -> None:
    memory, mode = shadowing()
    p = torch.nn.Parameter(torch.ones(3).half())
    with mode, torch.no_grad():
        q = torch.ones(3).half() / 3
        p.data = q
        y = p * 3.0
    assert twin(memory, y).tolist() == [1.0, 1.0, 1.0]
    assert memory.resyncs == {}


def test_a_second_version_counter_on_a_storage_is_no_unseen_write() -> None:
    """``.data`` and ``set_`` give a storage tensors with counters of their own: the values tell that nothing was written."""
    with pl.audit() as audit:
        x = torch.linspace(0.1, 0.9, 8).half() / 3
        wide = x.float()
        alias = torch.empty(0).set_(wide.untyped_storage(), 0, (8,), (1,))
        assert torch.equal(audit.shadow(alias), audit.shadow(wide))
        wide.mul_(1 / 3)
        alias.add_(1.0)
        assert torch.equal(audit.shadow(wide), audit.shadow(x) / 3 + 1.0)
    assert audit.memory.resyncs == {}


def test_set_makes_a_tensor_read_the_twin_of_its_new_storage() -> None:
    memory, mode = shadowing()
    with mode:
        x, y = torch.ones(4).half() / 3, torch.ones(4).half() / 7
        x.set_(y)
    assert torch.equal(twin(memory, x), torch.full((4,), 1 / 7, dtype=torch.float64))


def test_a_grown_storage_restarts_its_twin() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.ones(4).half() / 3
        x.resize_(9).fill_(2.0)
        y = x + 0.0
    assert torch.equal(twin(memory, y), torch.full((9,), 2.0, dtype=torch.float64))


def test_storage_freed_and_given_back_as_sharded_training_does() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.ones(8).half() / 3
        size = x.untyped_storage().nbytes()
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(size)
        x.copy_(torch.full((8,), 1 / 7, dtype=torch.float64))
    assert torch.equal(twin(memory, x), torch.full((8,), 1 / 7, dtype=torch.float64))


def test_a_storage_read_as_another_dtype_restarts_and_is_counted() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.ones(4).half() / 3
        y = x.view(torch.bfloat16) * 1.0
    assert torch.equal(twin(memory, y), y.double())
    assert memory.resyncs == {"storage reinterpreted as another dtype": 1}


@pytest.mark.parametrize("kind", ["conjugate", "negative imaginary part", "real part", "complex of pairs"])
def test_complex_views_share_the_twin(kind: str) -> None:
    memory, mode = shadowing()
    exact = torch.randn(5, dtype=torch.complex128)
    with mode:
        z = exact.to(torch.complex64)
        if kind == "complex of pairs":
            z = torch.view_as_complex(torch.view_as_real(exact).float())
        view, wanted = {
            "conjugate": lambda: (z.conj(), exact.conj()),
            "negative imaginary part": lambda: (z.conj().imag, exact.conj().imag),
            "real part": lambda: (z.real, exact.real),
            "complex of pairs": lambda: (z, exact),
        }[kind]()
    assert torch.equal(twin(memory, view), wanted.resolve_conj().resolve_neg())


def test_a_write_through_a_conjugate_view_reaches_the_twin() -> None:
    memory, mode = shadowing()
    exact, other = torch.randn(5, dtype=torch.complex128), torch.randn(5, dtype=torch.complex128)
    with mode:
        z = exact.to(torch.complex64)
        z.conj().copy_(other.to(torch.complex64))
    assert torch.equal(twin(memory, z), other.conj().resolve_conj())


@pytest.mark.parametrize("cap", [0, 4_000, 20_000])
def test_bytes_held_never_exceed_the_cap_and_evictions_are_counted(cap: int) -> None:
    memory, mode = shadowing(cap)
    with mode:
        kept = [torch.ones(100).half() / (i + 3) for i in range(50)]
        total = sum(kept).sum()
    assert memory.peak_bytes <= cap
    assert memory.evicted_bytes > 0
    assert memory.resyncs["evicted under the memory cap"] > 0
    assert torch.equal(total, sum(torch.ones(100).half() / (i + 3) for i in range(50)).sum())


def test_a_shared_buffer_is_counted_once_and_until_its_last_holder_goes() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.ones(100).half() / 3
        alone = memory.bytes
        y = x.float()
        assert memory.bytes == alone
        del x
        assert memory.bytes == alone
        y.add_(1.0)
        assert memory.bytes == alone
        del y
    assert memory.bytes == 0


def test_whichever_holder_of_a_shared_buffer_is_written_first_gets_a_copy() -> None:
    memory, mode = shadowing()
    with mode:
        x = torch.ones(3).half() / 3
        y = x.float()
        x.add_(1.0)
    assert twin(memory, x).tolist() == [4 / 3] * 3
    assert twin(memory, y).tolist() == [1 / 3] * 3


def test_without_the_garbage_collector_twins_go_with_their_tensors() -> None:
    """No reference cycles on the way of an op, forward or backward."""
    memory, mode = shadowing()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).bfloat16()
    x = torch.randn(4, 8).bfloat16()
    gc.collect()
    gc.disable()
    try:
        with mode:
            for _ in range(3):
                model(x).square().mean().backward()
                model.zero_grad()
            held = len(memory)
    finally:
        gc.enable()
    assert held <= len(list(model.parameters())) + 1
