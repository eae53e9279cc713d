"""Imports every module with op rules: importing this registers them all."""

import importlib
import pkgutil

import precisionlab.ops as _package

_HELPERS = {"registry", "catalogue", "local", "stable"}

for _module in pkgutil.iter_modules(_package.__path__):
    if _module.name not in _HELPERS:
        importlib.import_module(f"{_package.__name__}.{_module.name}")
