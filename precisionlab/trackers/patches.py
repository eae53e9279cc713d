"""The few torch entry points that dispatch cannot see, wrapped while an audit runs and put back afterwards, also after an exception.

``torch.tensor`` rounds a Python number before any op is dispatched; ``GradScaler`` and ``LRScheduler`` calls are the loop protocol;
``torch.autograd.backward`` tells where the loss is. Wrappers call the original first or last and change neither arguments nor results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """Attributes replaced for the time of an audit."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any, bool]] = []

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace ``owner.name`` by a function that calls ``around(original, *args, **kwargs)``."""
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, replacement)
        self._saved.append((owner, name, original, own))

    def restore(self) -> None:
        """Put every original back, last first."""
        while self._saved:
            owner, name, original, own = self._saved.pop()
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
