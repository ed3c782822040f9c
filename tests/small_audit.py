"""An audit of a few models and steps: all sections, none of them at length."""

from __future__ import annotations

from dataclasses import replace

from securefl.audit import audits
from securefl.audit.inversion import report_section as inversion
from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.inversion.sum_attacks import SumEffort
from securefl.audit.tracing import setup

INVERSION = inversion.InversionEffort(2, 2, Search(3, 1), SumEffort(2, 6, Search(3, 1)))
TINY = audits.AuditEffort("quick", 1, 2, 60, INVERSION, workers=1)


def audits_are_tiny(patch):
    """Have `securefl audit`, with --full, too, be short, and in this process."""
    for name in ("quick", "full"):
        patch.setattr(audits, name.upper(), replace(TINY, name=name))
        patch.setitem(setup.EFFORTS, name, setup.TracingEffort(100, (4, 16), 300, 200))
