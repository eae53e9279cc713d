"""Packages whose import needs help."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

_declared: list[torch.library.Library] = []


def let_torchvision_import() -> None:
    """PyPI's torchvision beside a CPU build of torch imports only when someone declares ``nms``; broken, it breaks transformers too."""
    if _declared or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, ImportError, AttributeError):
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
