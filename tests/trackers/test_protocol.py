"""The loop protocol: every fault in several forms, and the same loops done right."""

import pytest

import precisionlab as pl
from precisionlab.records import Verdict

from .loops import FAULTY, SOUND


@pytest.mark.parametrize("name", FAULTY)
def test_a_loop_that_breaks_the_protocol_is_named(name: str) -> None:
    program, code = FAULTY[name]
    with pl.audit() as audit:
        program()
    broken = [f for f in audit.report.findings if f.verdict is Verdict.BROKEN]
    assert code in {f.code for f in broken}, [(f.code, f.op, f.message) for f in audit.report.findings]


@pytest.mark.parametrize("name", SOUND)
def test_a_loop_done_right_is_not_broken(name: str) -> None:
    with pl.audit() as audit:
        SOUND[name]()
    assert not [(f.code, f.message) for f in audit.report.findings if f.verdict is Verdict.BROKEN]
