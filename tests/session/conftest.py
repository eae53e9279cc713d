from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def everything_is_restored() -> Iterator[dict[str, Any]]:
    from session_programs import state

    before = state()
    yield before
    from precisionlab.session import running

    left = running()
    if left is not None:
        left._uninstall()
    assert left is None, "the test left an audit running"
    assert state() == before
