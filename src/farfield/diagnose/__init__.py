"""Look at the data before training: what was read, and how the domains differ.

The package can be called like the function it is named after: `farfield.diagnose("heart-disease")`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farfield.diagnose.finding import Diagnosis


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Diagnosis:
        """Diagnose a task; see `farfield.diagnose.diagnosis.diagnose`."""
        from farfield.diagnose.diagnosis import diagnose

        return diagnose(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
