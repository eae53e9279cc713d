"""The profile in force: shipped where it fits, live where it does not; probing leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from precisionlab import backends
from precisionlab.backends import live as live_module
from precisionlab.backends.cases import all_cases, case
from precisionlab.backends.live import LiveProfile, target_profile
from precisionlab.backends.lookup import entry_for
from precisionlab.backends.probe import probe
from precisionlab.backends.profile import SizeClass
from precisionlab.errors import RegistryError, SettingsError

DTYPES = ("fp32", "bf16", "fp16")


def test_the_live_profile_finds_what_the_profile_in_force_says() -> None:
    live, shipped = LiveProfile(), backends.current()
    for op in ("aten.mm", "aten.index_put", "aten.cumsum", "aten.nll_loss_forward"):
        for dtype in DTYPES:
            found, known = live.accumulation_of(op, dtype, 100), shipped.accumulation_of(op, dtype, 100)
            assert found is not None and known is not None and found.accumulation == known.accumulation
    assert live.accumulation_of("aten.relu", "fp32") is None and live.accumulation_of("aten.mm", "fp64") is None


def test_every_case_is_in_the_profile_in_force() -> None:
    shipped = backends.current()
    for op in {known.op for known in all_cases()}:
        for dtype in DTYPES:
            assert shipped.accumulation_of(op, dtype) is not None, (op, dtype)


def test_probing_draws_no_random_numbers_and_leaves_switches_alone() -> None:
    before = torch.get_rng_state(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.get_num_threads()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = probe(["mm"], [torch.float32], classes=[SizeClass.SHORT])
    assert under.entries == probe(["mm"], [torch.float32], classes=[SizeClass.SHORT]).entries
    LiveProfile().accumulation_of("aten.mm", "fp32")
    after = torch.get_rng_state(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.get_num_threads()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_the_arguments_of_a_call_choose_its_sum() -> None:
    profile = backends.current()
    index, rows, row = torch.zeros(4, dtype=torch.long), torch.ones(4, 3), torch.ones(4)

    def accumulation(op: str, *args: object, **kwargs: object) -> str | None:
        entry = entry_for(profile, op, "bf16", args, kwargs)
        return entry.accumulation if entry else None

    assert accumulation("aten.index_add_", rows, 0, index, rows) == "fp32"
    assert accumulation("aten.index_add_", rows, 0, index, rows, alpha=2) == "bf16"
    assert accumulation("aten.index_add", row, 0, index, row) == "bf16"
    assert accumulation("aten.index_put_", rows, [index], rows, True) == "bf16"
    assert accumulation("aten.index_put_", rows, [index], rows) is None
    assert accumulation("aten.nll_loss_forward", rows, index, None, 1, -100) == "bf16"
    assert accumulation("aten._index_put_impl_", rows, [index], rows, True, False) == "bf16"


def test_a_length_chooses_the_class() -> None:
    h100 = backends.load_profile("h100")
    short, long = torch.ones(2, 64), torch.ones(2, 8192)
    assert entry_for(h100, "aten.mm", "fp16", [short, short], {}).accumulation == "fp32"  # type: ignore[union-attr]
    assert entry_for(h100, "aten.mm", "fp16", [long, long], {}).accumulation == "fp16"  # type: ignore[union-attr]


def test_a_target_is_a_profile_a_name_or_a_file() -> None:
    h100 = backends.load_profile("h100")
    assert target_profile(None) is None and target_profile(h100) is h100 and target_profile("h100") == h100
    with pytest.raises(SettingsError, match="target must be a profile"):
        target_profile(3)  # type: ignore[arg-type]


def test_two_cases_with_one_name_are_refused() -> None:
    known = all_cases()[0]
    with pytest.raises(RegistryError, match="two probe cases"):
        case(known.op, known.label)(known.adapter)


def test_a_profile_of_another_machine_is_not_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = backends.load_profile("cpu")
    for other in (replace(shipped, torch="2.12.0"), replace(shipped, hardware="another AVX2")):
        monkeypatch.setattr(live_module, "load_profile", lambda name, other=other: other)
        assert isinstance(live_module.current.__wrapped__(), LiveProfile)
