"""Findings that are made by hand, and any others that hypothesis thinks of."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from securefl.audit.bounds.canary_bounds import OneRunBound
from securefl.audit.bounds.record_bounds import Noise, RecordBounds
from securefl.audit.bounds.score_bound import ScoreBound
from securefl.audit.findings import Findings, Number, Section
from securefl.audit.rules import Verdict
from securefl.io.html import PageTable, Picture

NASTY = (
    "<script>alert(1)</script>",
    "\"><img src=https://example.com/x onerror='alert(1)'>",
    "</style></table></section>",
    "{{ 7 * 7 }} {% raw %}",
    "&lt;b&gt; &amp; ]]>",
    "`--encrypt <b>` and `one more",
    "javascript:alert(1)",
    "\u202egnorw\x07\n\ufeff",
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 300"><path d="M0 0H900V300Z"/></svg>'
)
LONG = "a_name_without_any_place_to_break_it_" * 12
NUMBER = Number("AUC", 0.625, "of the loss (Yeom 2018)", 7, 0.5, 0.75)
LEAK = Section(
    "inversion",
    "Gradient inversion",
    Verdict.LEAKS,
    "Images are rebuilt; `--encrypt model` hides them in 50 % of the cases.",
    (NUMBER, Number("ε at most", math.inf, "accountant")),
    (PageTable("Attacks", ("attack", "AUC"), (("loss", "0.6"), ("RMIA", "0.7")), frozenset({1})),),
    (Picture("A drawing", "Nothing but a line.", svg=SVG),),
    ("No stronger attack was tried.",),
)
FINDINGS = Findings(
    "fedtan-mlp",
    "quick",
    3,
    {"Algorithm": "fedtan", "Rounds": "200"},
    (
        Section("epsilon", "Bounds on ε", Verdict.OPEN, "Nothing was claimed."),
        Section("encryption", "Encryption", Verdict.HOLDS, "Totals alone were opened."),
        LEAK,
        Section("exposure", "Who saw what", Verdict.WEAK, "The server read parameters."),
    ),
)

texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=40))
values = st.one_of(st.floats(), st.integers(-(10**18), 10**18))
ends = st.none() | st.floats()
numbers = st.builds(
    Number,
    texts,
    values,
    texts,
    seed=st.none() | st.integers(0, 2**31 - 1),
    low=ends,
    high=ends,
    unit=st.sampled_from(["", "dB", "bits", "bytes", "%"]),
)
cells = st.lists(texts, max_size=4)
tables = st.builds(
    PageTable, texts, cells, st.lists(cells, max_size=3), st.frozensets(st.integers(0, 2))
)
pictures = st.builds(Picture, texts, texts, png=st.binary(max_size=20)) | st.builds(
    Picture, texts, texts, svg=texts
)


def some(strategy):
    return st.lists(strategy, max_size=2)


sections = st.builds(
    Section,
    st.from_regex(r"[a-z]{3,9}", fullmatch=True),
    texts,
    st.sampled_from(Verdict),
    texts,
    some(numbers),
    some(tables),
    some(pictures),
    some(texts),
)
findings = st.builds(
    Findings,
    texts,
    st.sampled_from(["quick", "full"]),
    st.integers(0, 2**31 - 1),
    st.dictionaries(texts, texts, max_size=2),
    st.lists(sections, max_size=3, unique_by=lambda section: section.key),
)


def one_run(epsilon, ceiling=5.0):
    return OneRunBound(epsilon, ceiling, 300, 100, 90, 1e-5, 0.95)


def records_showing(epsilon, ceiling=5.0, *, curve=0.0, scores=0.0, noise=Noise.UNKNOWN):
    """Return bounds of records, the first of which holds for any mechanism."""
    by_scores = ScoreBound(1.0, scores, 0.5, 150, 0.95)
    return RecordBounds(noise, one_run(epsilon, ceiling), one_run(curve, ceiling), by_scores)
