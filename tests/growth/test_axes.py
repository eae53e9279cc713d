"""What --along and --target mean, and what they refuse."""

from __future__ import annotations

import pytest

from precisionlab.errors import SettingsError
from precisionlab.growth.axes import Axis, parse_axes, parse_axis, parse_targets


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("seq_len=128:4096:x2", (128, 256, 512, 1024, 2048, 4096)),
        ("seq_len=128:1000", (128, 256, 512)),
        ("depth=4:16:+4", (4, 8, 12, 16)),
        ("depth=4:16:4", (4, 8, 12, 16)),
        ("depth=2,3,5", (2, 3, 5)),
        ("n=2:8:x1.5", (2, 3, 4, 7)),
        ("scale=0.5:4:x2", (0.5, 1, 2, 4)),
    ],
)
def test_sizes_are_read(text: str, sizes: tuple[float, ...]) -> None:
    assert parse_axis(text) == Axis(text.partition("=")[0], tuple(float(size) for size in sizes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq_len", "needs an axis and its sizes"),
        ("=1,2", "needs an axis and its sizes"),
        ("seq_len=", "needs an axis and its sizes"),
        ("seq_len=128", "has one size, 128: growth needs several, and a law 4"),
        ("seq_len=128:128:x2", "has one size"),
        ("seq_len=4,2,8", "must ascend, got 4,2,8"),
        ("seq_len=2,2,4", "must ascend"),
        ("seq_len=512:128:x2", "must ascend, got 512:128:x2"),
        ("seq_len=a,b", "'a' is no size of seq_len"),
        ("seq_len=0,1", "'0' is no size"),
        ("seq_len=-4:8:x2", "'-4' is no size"),
        ("seq_len=1.5,2", "only scale takes fractions"),
        ("seq_len=1:8:x1", "a factor of 1 makes no new sizes"),
        ("seq_len=1:8:y2", "cannot be read"),
        ("seq_len=1:2:3:4", "cannot be read"),
        ("seq_len=1:1000000:+1", "more than 200 sizes"),
        ("seq_len=inf,2", "'inf' is no size"),
    ],
)
def test_what_makes_no_sizes_is_refused_with_an_example(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_axis(text)
    assert said in caught.value.message
    assert "--along" in caught.value.hint


def test_an_axis_given_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="depth is given twice"):
        parse_axes(["depth=1,2", "depth=3,4"])


def test_a_target_must_be_a_size_of_an_axis_that_is_swept() -> None:
    axes = parse_axes(["depth=2,4"])
    assert parse_targets(["depth=96"], axes) == {"depth": 96.0}
    with pytest.raises(SettingsError, match="here depth"):
        parse_targets(["seq_len=96"], axes)
    with pytest.raises(SettingsError, match="'x' is no size"):
        parse_targets(["depth=x"], axes)
