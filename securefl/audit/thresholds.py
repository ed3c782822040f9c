"""Thresholds of verdicts and of their words: all that a rule or a sentence compares a number with.

docs/audit.md shows `TABLE` (docs/audit_table.py writes it).
"""

import math
from collections.abc import Sequence

ALARM = 0.05
"""Probability of a false alarm of a section, over all its tests together."""
CONFIDENCE = 1 - ALARM
"""Probability that an interval covers."""

FEWEST_RECORDS = 30
"""Training and other records below which membership is not judged."""
STRONG_AREA, STRONG_RATE = 0.7, 0.1
"""AUC, and TPR at 1 % FPR, from which a found attack is strong, by the lower end."""
SAID_AREA, SAID_RATE = 0.505, 0.01
"""Lower ends of AUC, and of TPR at 1 % FPR, above which the sentence says the number."""

SLIGHT_AREA, SLIGHT_RATE = 0.65, 0.05
"""AUC, and lower end of the TPR at 1 % FPR, up to which a found attack is slight."""

CHANCE, NOTICED, PLAIN = 0.5, 0.6, 0.75
"""AUCs of tracing above which, by the whole interval, records are told apart a little, somewhat,
or plainly."""

EPSILON_WORDS = (
    (0.16, "next to nothing; without noise that is no promise"),
    (1.0, "records are told apart a little"),
    (3.0, "records are told apart"),
    (8.0, "records are told apart so well that the model is far from private"),
    (math.inf, "some records are told apart all but surely"),
)
"""Words for what a lower bound on ε shows, each up to a number."""

CLEAR_PSNR, CLEAR_ERROR = 30.0, 0.1
"""PSNR in dB from which an image, and error in σ up to which a row, counts as recovered."""

SLIGHT_PSNR, SLIGHT_ERROR = 1.0, 0.05
"""Gains over the guess, in dB for images and in σ for rows, up to which the sentence says 'next to
nothing' where no sample is recovered."""

MOST_CANARIES = 1000
"""Canary records of a full audit, the most that one plants."""

LEAST_SECURITY = 128
"""Bits of security that parameters have at least."""
LEAST_ERROR = 0.5
"""Share of the promised error of encryption that is there at least."""

SAME = 0.1
"""Largest difference of weights that rounding explains: encrypted totals err by 2⁻²⁴, and
training magnifies that (the demo's job with its model sealed: 0.02 after 200 rounds)."""


def _meanings() -> list[tuple[str, str, str]]:
    at_least = [0.0, *(most for most, _ in EPSILON_WORDS)]
    return [
        (
            "" if least else "Bounds on ε",
            f"above {least:g}" if math.isinf(most) else f"{least:g} to {most:g}",
            f"a lower bound on ε there says: {words}",
        )
        for least, (most, words) in zip(at_least, EPSILON_WORDS, strict=False)
    ]


TABLE: Sequence[tuple[str, str, str]] = (
    ("all", f"{100 * CONFIDENCE:g} %", "probability that an interval covers"),
    (
        "all",
        f"{SAME:g}",
        "difference of a weight, of the run played again, above which it is another run",
    ),
    (
        "Membership inference",
        f"{100 * ALARM:g} %",
        "probability under chance, over all tests together, below which an attack is found",
    ),
    ("", f"{FEWEST_RECORDS}", "training and other records that are compared at least"),
    ("", f"{STRONG_AREA:g}", "AUC from which an attack is strong, by its lower end"),
    ("", f"{100 * STRONG_RATE:g} %", "TPR at 1 % FPR from which it is strong, by its lower end"),
    ("", f"{SAID_AREA:g}", "lower end of an AUC from which the sentence says it"),
    ("", f"{100 * SAID_RATE:g} %", "lower end of a TPR at 1 % FPR above which it says that"),
    ("", f"{SLIGHT_AREA:g}", "AUC up to which the sentence says 'slightly'"),
    ("", f"{100 * SLIGHT_RATE:g} %", "TPR at 1 % FPR up to which it does, by its lower end"),
    *_meanings(),
    ("", f"{MOST_CANARIES:,}", "canary records of a full audit"),
    ("Gradient inversion", "0", "gain over the guess, by its lower end, above which it is certain"),
    ("", f"{CLEAR_PSNR:g} dB", "PSNR from which an image counts as recovered"),
    ("", f"{CLEAR_ERROR:g} σ", "error up to which a row counts as recovered"),
    (
        "",
        f"{SLIGHT_PSNR:g} dB, {SLIGHT_ERROR:g} σ",
        "gain over the guess up to which the sentence says 'next to nothing', if none is recovered",
    ),
    ("Tracing", f"{PLAIN:g}", "AUC above which, by its lower end, records are told apart plainly"),
    ("", f"{NOTICED:g}", "the same, somewhat"),
    ("", f"{CHANCE:g}", "the same, a little: up to it, it may be chance"),
    ("Encryption", f"{LEAST_SECURITY} bits", "security of parameters at least"),
    ("", f"{LEAST_ERROR:g}", "share of the promised error that encryption has at least"),
)
"""Section, threshold and meaning of each."""
