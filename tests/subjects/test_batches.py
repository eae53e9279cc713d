from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass

import torch

from precisionlab.subjects.batches import make_batch, map_tensors, tensors
from precisionlab.subjects.subject import Subject
from precisionlab.subjects.words import LowDtype, parse_dtype

Pair = namedtuple("Pair", "x y")


@dataclass
class Record:
    x: torch.Tensor
    label: str


def test_tensors_are_found_with_paths_that_read_like_python() -> None:
    one = torch.ones(1)
    batch = {"a": [one, (one,)], "b": Record(one, "cat"), "c": "text"}
    assert [path for path, _ in tensors(batch, "batch")] == ["batch['a'][0]", "batch['a'][1][0]", "batch['b'].x"]


def test_mapping_keeps_the_containers() -> None:
    one = torch.ones(1)
    batch = {"a": [one, 3], "p": Pair(one, "s"), "r": Record(one, "cat"), "u": UserDict(x=one)}
    doubled = map_tensors(batch, lambda tensor: tensor * 2)
    assert doubled["a"] == [torch.tensor([2.0]), 3]
    assert type(doubled["p"]) is Pair and doubled["p"].x == 2
    assert type(doubled["r"]) is Record and doubled["r"].x == 2 and doubled["r"].label == "cat"
    assert type(doubled["u"]) is UserDict and doubled["u"]["x"] == 2
    assert batch["u"]["x"] == 1


def test_batch_functions_get_what_they_name() -> None:
    def loss(model: object, batch: object) -> None: ...

    def take(function: object) -> object:
        return make_batch(Subject(None, function, loss, sizes={"n": 5}), 2)

    assert take(lambda: "fixed") == "fixed"
    assert take(lambda step: step) == 2
    assert take(lambda step, n: (step, n)) == (2, 5)
    assert take(lambda n: n) == 5
    assert take(lambda step, **sizes: (step, sizes)) == (2, {"n": 5})


def test_every_spelling_of_a_dtype_is_understood() -> None:
    for name in ("fp16", "half", "float16", "torch.float16", "FP16", torch.float16):
        assert parse_dtype(name) is LowDtype.FP16
