"""Profiles: lookup, files, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from precisionlab.backends import (
    Entry,
    FlagEffect,
    Order,
    Origin,
    Profile,
    ProfileError,
    Rounding,
    SizeClass,
    dumps,
    load_profile,
    loads,
    shipped_names,
)
from precisionlab.errors import PrecisionLabError, SettingsError

SUM = Entry("aten.sum", "bf16", SizeClass.SHORT, "fp32", Order.BLOCKED, 16, Rounding.NEAREST_EVEN, False, "", {"terms": 128})
GRADIENT = Entry("aten.index_put", "bf16", SizeClass.SHORT, "bf16", Order.SEQUENTIAL, None, Rounding.NEAREST_EVEN, False, "rows")
PROFILE = Profile(
    "mine",
    "cpu",
    "a processor",
    "2.13.0+cpu",
    Origin.PROBED,
    (
        SUM,
        replace(SUM, size_class=SizeClass.LONG, accumulation="14-bit"),
        GRADIENT,
        replace(GRADIENT, accumulation="fp32", case="elements"),
    ),
    (FlagEffect("torch.set_flush_denormal(True)", "aten.sum", "fp32", {"flushes_subnormals": "False -> True"}),),
    ("1 threads",),
)


def changed(key: str, value: object, where: str = "") -> str:
    data = json.loads(dumps(PROFILE))
    (data["entries"][0] if where else data)[key] = value
    return json.dumps(data)


def test_a_profile_survives_its_file() -> None:
    text = dumps(PROFILE)
    assert loads(text) == PROFILE
    assert dumps(loads(text)) == text


def test_lookup_takes_the_nearest_class_of_lengths_and_the_narrowest_sum() -> None:
    assert PROFILE.accumulation_of("aten.sum", "bf16", 100) == SUM
    found = PROFILE.accumulation_of("aten.sum", "bf16", 100_000)
    assert found is not None and (found.accumulation, found.bits) == ("14-bit", 14)
    assert PROFILE.accumulation_of("aten.index_put_", "bf16", 100) == GRADIENT
    assert PROFILE.accumulation_of("aten.sum", "fp16", 100) is None
    assert PROFILE.accumulation_of("aten.mm", "bf16", 100) is None


def test_size_classes_have_their_borders() -> None:
    assert [SizeClass.of(n) for n in (1, 256, 257, 4096, 4097)] == [
        SizeClass.SHORT,
        SizeClass.SHORT,
        SizeClass.MEDIUM,
        SizeClass.MEDIUM,
        SizeClass.LONG,
    ]


def test_another_release_of_torch_is_a_mismatch_and_another_build_is_none() -> None:
    assert PROFILE.mismatch("2.13.1+cu130") is None
    sentence = PROFILE.mismatch("2.14.0")
    assert sentence is not None and "2.13.0+cpu" in sentence and "2.14.0" in sentence
    assert replace(PROFILE, torch="").mismatch("2.14.0") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not strict JSON"),
        ('{"profile_version": NaN}', "NaN is not allowed"),
        ("[]", "no profile_version"),
        (changed("profile_version", 99), "version 99"),
        (changed("origin", "guessed"), "origin must be probed or declared"),
        (changed("entries", {}), "entries must be a list"),
        (changed("entries", [1]), "entries[0] is not an object"),
        (changed("accumulation", "fp33", "entry"), "'fp33' is no accumulation format"),
        (changed("dtype", "int8", "entry"), "unknown number format"),
        (changed("order", "random", "entry"), "order must be"),
        (changed("block", 0, "entry"), "block must be at least 1"),
        (changed("block", True, "entry"), "block must be a whole number"),
        (changed("flushes_subnormals", "no", "entry"), "flushes_subnormals must be true or false"),
        (changed("speed", 1, "entry"), "unknown field 'speed'"),
    ],
)
def test_a_malformed_profile_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        loads(text, "some.json")
    assert said in caught.value.message and "some.json" in caught.value.message and caught.value.hint
    assert isinstance(caught.value, PrecisionLabError) and caught.value.exit_code == 2


def test_an_unknown_name_lists_the_shipped_profiles() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("h10")
    assert all(name in caught.value.hint for name in shipped_names())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        load_profile(tmp_path / "none.json")


def test_an_accumulation_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError):
        _ = replace(SUM, accumulation="wide").bits


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_profiles_load_and_say_where_they_come_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name and profile.entries
    if profile.origin is Origin.DECLARED:
        assert profile.torch == "" and any("not probed" in note for note in profile.notes)
        assert all(str(entry.evidence.get("source", "")) for entry in profile.entries)
    else:
        assert profile.torch and all(entry.evidence for entry in profile.entries)
    assert all(entry.bits > 0 for entry in profile.entries)
