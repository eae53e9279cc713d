"""Every check. Importing this module registers them all; ``base.all_checks`` and ``base.check_for`` then know them."""

from __future__ import annotations

from precisionlab.checks import pl101 as pl101
from precisionlab.checks import pl102 as pl102
from precisionlab.checks import pl103 as pl103
from precisionlab.checks import pl104 as pl104
from precisionlab.checks import pl105 as pl105
from precisionlab.checks import pl106 as pl106
from precisionlab.checks import pl107 as pl107
from precisionlab.checks import pl108 as pl108
from precisionlab.checks import pl109 as pl109
from precisionlab.checks import pl201 as pl201
from precisionlab.checks import pl202 as pl202
from precisionlab.checks import pl203 as pl203
from precisionlab.checks import pl301 as pl301
from precisionlab.checks import pl302 as pl302
from precisionlab.checks import pl303 as pl303
from precisionlab.checks import pl304 as pl304
from precisionlab.checks import pl401 as pl401
from precisionlab.checks import pl402 as pl402
from precisionlab.checks import pl403 as pl403
from precisionlab.checks import pl404 as pl404
from precisionlab.checks import pl405 as pl405
from precisionlab.checks import pl406 as pl406
from precisionlab.checks import pl407 as pl407
from precisionlab.checks import pl408 as pl408
from precisionlab.checks import pl409 as pl409
from precisionlab.checks import pl501 as pl501
from precisionlab.checks import pl502 as pl502
from precisionlab.checks import pl503 as pl503
from precisionlab.checks import pl504 as pl504
from precisionlab.checks import pl505 as pl505
from precisionlab.checks import pl506 as pl506
from precisionlab.checks import pl507 as pl507
from precisionlab.checks import pl508 as pl508
from precisionlab.checks import pl509 as pl509
from precisionlab.checks import pl510 as pl510
from precisionlab.checks import pl511 as pl511
from precisionlab.checks import pl601 as pl601
from precisionlab.checks import pl901 as pl901
from precisionlab.checks import pl902 as pl902
from precisionlab.checks import pl903 as pl903
from precisionlab.checks.base import all_checks, check_for

__all__ = ["all_checks", "check_for"]
