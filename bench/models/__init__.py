"""Healthy programs: real architectures and training loops in which nothing is wrong, so that every finding about them is a false alarm.

``PROGRAMS`` maps a name to its ``Program``. A program is built for a ``Plan`` (dtype and mode) and gives a function that runs one step;
what it builds lies outside the audit, what it runs inside. Packages that a program needs are imported when it is built.
"""

from bench.models import language, libraries, loops, recurrent, vision  # noqa: F401  registers the programs
from bench.models.plan import PLANS, PROGRAMS, Plan, Program, Trainer

__all__ = ["PLANS", "PROGRAMS", "Plan", "Program", "Trainer"]
