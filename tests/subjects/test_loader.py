from __future__ import annotations

from pathlib import Path

import pytest
import torch

from precisionlab.errors import PrecisionLabError, SettingsError, SubjectError
from precisionlab.subjects.batches import make_batch
from precisionlab.subjects.inputs import InputSpec, parse_size
from precisionlab.subjects.loader import load_subject

HEAD = """\
import torch
from torch import nn
from precisionlab import Subject
def loss(model, batch):
    return model(batch).sum()
"""
GPT = """\
class GPT(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(4, width)
    def forward(self, x):
        return self.layer(x)
"""
BLOCK = """\
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
"""


def write(folder: Path, *parts: str) -> str:
    (folder / "model.py").write_text("".join(parts))
    return str(folder / "model.py")


def test_three_names_are_enough(tmp_path: Path) -> None:
    subject = load_subject(write(tmp_path, HEAD, "model = nn.Linear(2, 2)\nbatch = torch.ones(1, 2)\n"))
    assert isinstance(subject.model, torch.nn.Linear)
    assert subject.optimizer is None
    assert subject.name.endswith("model.py")


def test_optimizer_and_sizes_are_taken_along(tmp_path: Path) -> None:
    text = "model = lambda: nn.Linear(2, 2)\nbatch = torch.ones(1, 2)\nsizes = {'n': 3}\noptimizer = lambda p: torch.optim.SGD(p, lr=1)\n"
    subject = load_subject(write(tmp_path, HEAD, text))
    assert subject.sizes == {"n": 3} and callable(subject.optimizer)


def test_conventional_names_are_found(tmp_path: Path) -> None:
    text = "def make_subject():\n    return Subject(nn.Linear(2, 2), torch.ones(1, 2), loss, name='mine')\n"
    assert load_subject(write(tmp_path, HEAD, text)).name == "mine"


def test_a_single_subject_is_found_under_any_name(tmp_path: Path) -> None:
    assert isinstance(load_subject(write(tmp_path, HEAD, "small = Subject(nn.Linear(2, 2), 1, loss)\n")).model, torch.nn.Linear)


def test_several_subjects_are_listed_with_lines(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, "a = Subject(nn.Linear(2, 2), 1, loss)\nb = Subject(nn.Linear(3, 3), 1, loss)\n")
    with pytest.raises(SubjectError, match=r"several subjects.*a \(model.py:6\), b \(model.py:7\).*Try: .*model.py:a"):
        load_subject(path)
    assert load_subject(f"{path}:b").model.in_features == 3


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"has model and loss but no batch; found: the names model \(model.py:6\), loss \(model.py:4\)"):
        load_subject(write(tmp_path, HEAD, "model = nn.Linear(2, 2)\n"))


def test_no_model_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="nothing to audit; found no nn.Module, no Subject and none of the names"):
        load_subject(write(tmp_path, "x = 1\n"))


def test_imported_module_classes_are_no_candidates(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="nothing to audit"):
        load_subject(write(tmp_path, "from torch.nn import Linear, Identity\n"))


def test_several_models_are_listed_with_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "from torch import nn\n", GPT, GPT.replace("GPT", "Other"))
    with pytest.raises(SubjectError, match=r"several models; found: module classes GPT \(model.py:2\), Other \(model.py:8\)"):
        load_subject(path, inputs=InputSpec((2, 4)))


def test_the_only_class_that_needs_no_arguments_is_the_model(tmp_path: Path) -> None:
    subject = load_subject(write(tmp_path, "from torch import nn\n", BLOCK, GPT), inputs=InputSpec((2, 4)))
    assert subject.model.__name__ == "GPT"
    assert make_batch(subject, 0).shape == (2, 4)
    assert "stand-in" in subject.notes[0]


def test_classes_that_all_need_arguments_are_listed(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"every class needs arguments; found: module classes Block \(model.py:2\)"):
        load_subject(write(tmp_path, "from torch import nn\n", BLOCK), inputs=InputSpec((2, 4)))


def test_bare_model_without_size_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"GPT \(model.py:2\) is a model without a batch and a loss.*--input-size"):
        load_subject(write(tmp_path, "from torch import nn\n", GPT))


def test_named_class_uses_the_batch_and_loss_of_its_file(tmp_path: Path) -> None:
    subject = load_subject(write(tmp_path, HEAD, GPT, BLOCK, "batch = torch.ones(1, 4)\n") + ":GPT")
    assert subject.loss.__name__ == "loss"


def test_named_function_that_builds_a_model(tmp_path: Path) -> None:
    subject = load_subject(write(tmp_path, HEAD, "def build():\n    return nn.Linear(2, 2)\nbatch = torch.ones(1, 2)\n") + ":build")
    assert callable(subject.model) and not isinstance(subject.model, torch.nn.Module)


def test_unknown_name_gives_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"has no 'GTP'; found: .*GPT \(model.py:6\).*Try: .*model.py:GPT"):
        load_subject(write(tmp_path, HEAD, GPT) + ":GTP")


def test_named_thing_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"loss \(model.py:4\) is a function that needs arguments"):
        load_subject(write(tmp_path, HEAD) + ":loss")


def test_integer_inputs_lie_below_the_limit(tmp_path: Path) -> None:
    subject = load_subject(write(tmp_path, "from torch import nn\n", GPT), inputs=InputSpec((64,), "int64", 3))
    batch = make_batch(subject, 0)
    assert batch.dtype is torch.int64 and set(batch.tolist()) == {0, 1, 2}


def test_integer_inputs_need_a_limit(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--input-high"):
        load_subject(write(tmp_path, "from torch import nn\n", GPT), inputs=InputSpec((64,), "int64"))


def test_random_weights_made_on_import_depend_on_the_seed_alone(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, "model = nn.Linear(2, 2)\nbatch = torch.ones(1, 2)\n")
    first, again, other = (load_subject(path, seed=seed).model.weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("text", ["8,128", "8x128"])
def test_sizes_are_read(text: str) -> None:
    assert parse_size(text) == (8, 128)


@pytest.mark.parametrize("text", ["", "8,", "8,-1", "a,b"])
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(PrecisionLabError, match="--input-size needs positive integers"):
        parse_size(text)
