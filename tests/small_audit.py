"""An audit of a few models and steps: all sections, none of them at length."""

from __future__ import annotations

from securefl.audit import audits
from securefl.audit.inversion import report_section as inversion
from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.inversion.sum_attacks import SumEffort
from securefl.audit.tracing import setup

TINY = audits.AuditEffort(
    "quick", 1, 2, 60, inversion.InversionEffort(2, 2, Search(3, 1), SumEffort(2, 6, Search(3, 1)))
)


def quick_is_tiny(patch):
    """Have `securefl audit --quick` be short, and in this process."""
    patch.setattr(audits, "QUICK", TINY)
    patch.setattr(audits, "WORKERS", 1)
    patch.setitem(setup.EFFORTS, "quick", setup.TracingEffort(100, (4, 16), 300, 200))
