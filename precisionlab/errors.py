"""Errors a user can meet. Each says what happened, and ``hint`` what to try; only the command line prints and maps them."""

from __future__ import annotations


class PrecisionLabError(Exception):
    """Base of all errors raised for wrong use. ``exit_code`` is what the command line returns."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. Try: {self.hint}" if self.hint else self.message


class SettingsError(PrecisionLabError):
    """A setting that does not exist or has a value of the wrong type."""


class SubjectError(PrecisionLabError):
    """The file or object to audit could not be loaded or run."""


class AuditStateError(PrecisionLabError):
    """An audit used out of order: started twice, nested, or read before it began."""


class RegistryError(PrecisionLabError):
    """An op rule or a check registered twice, or for something that is not an op."""


class UntrustworthyError(PrecisionLabError):
    """The audit ran but its answer cannot be trusted (nothing shadowed, coverage too low)."""

    exit_code = 3


class PlanError(PrecisionLabError):
    """No plan meets what was asked for; the message says what comes nearest."""

    exit_code = 1
