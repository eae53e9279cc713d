"""Plain data of a run: the torch-free half starts here."""

from precisionlab.records.enums import EventKind, Kind, Phase, SinkKind, Verdict
from precisionlab.records.ledger import LedgerRecord, LedgerShare
from precisionlab.records.run import (
    Coverage,
    EventRecord,
    Evidence,
    OpRecord,
    ParameterRecord,
    Plan,
    RunRecord,
    SinkRecord,
    Site,
    StepRecord,
)
from precisionlab.records.trials import TrialRecord, TrialRole

__all__ = [
    "Coverage",
    "EventKind",
    "EventRecord",
    "Evidence",
    "Kind",
    "LedgerRecord",
    "LedgerShare",
    "OpRecord",
    "ParameterRecord",
    "Phase",
    "Plan",
    "RunRecord",
    "SinkKind",
    "SinkRecord",
    "Site",
    "StepRecord",
    "TrialRecord",
    "TrialRole",
    "Verdict",
]
