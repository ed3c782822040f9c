"""Drawing of who gets what in which form: clients, server, and who opens. SVG of our own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import final

from securefl.report.plots import COLOURS

WIDTH, MIDDLE = 360, 180
"""Width and middle of the drawing, in its own units: a phone's width."""
_TEXT, _CLEAR, _SEALED, _REFUSED = "#222222", COLOURS[1], COLOURS[2], "#b00020"
_BOX_WIDTH, _BOX_HEIGHT, _GAP, _LINE = 240, 46, 124, 16

_LETTERS = 24
"""Letters for which there is room beside an arrow."""
_ATTRIBUTES = (
    'xmlns="http://www.w3.org/2000/svg" role="img" font-family="sans-serif" font-size="12"'
)

Label = tuple[str, str]
"""Colour and text of a line."""


@final
@dataclass(frozen=True, slots=True)
class Flow:
    """Counts of a run's messages."""

    n_clients: int
    sealed_up: int
    """Messages of clients to the server that are ciphertext."""
    clear_up: int
    """Messages of clients to the server in the clear."""
    clear_kinds: tuple[str, ...]
    """Kinds of content in these."""
    opened: int
    """Totals that were decrypted."""
    fewest: int
    """Least number of clients in one of them; 0 where there is none."""
    scores: int
    """Scores of profiles that were decrypted, each of one client."""
    refused: int
    """Requests of the server that were refused."""
    down: int
    """Messages of the server to clients."""
    opener: str
    """Party that decrypts; empty where nothing is encrypted."""

    def described(self) -> str:
        """Return the drawing's content in words."""
        said = [
            f"{self.n_clients} clients send the server {self.sealed_up:,} encrypted messages",
            f"and {self.clear_up:,} in the clear",
        ]
        if self.opener:
            done = _joined(_opened(self))
            said.append(
                f"and the {self.opener} {done}, and requests were refused: {self.refused:,}"
            )
        return " ".join(said) + "."


def graph(flow: Flow) -> str:
    """Return the drawing as SVG; the same flow gives the same text."""
    boxes = [
        (f"{flow.n_clients} clients", "each with its own data"),
        ("server", "adds ciphertexts, has no key"),
        (flow.opener, "decrypts what the server asks for"),
    ]
    if not flow.opener:
        boxes = [boxes[0], ("server", "reads all that clients send")]
    first = [(_TEXT, f"{flow.down:,} messages:"), (_TEXT, "model and totals")]
    between = [
        (_sent(flow), first, _SEALED if flow.sealed_up else _CLEAR),
        (_asked(flow), _opened(flow), _SEALED),
    ]
    height = len(boxes) * (_BOX_HEIGHT + _GAP) - _GAP + 20
    parts = [
        f'<svg {_ATTRIBUTES} viewBox="0 0 {WIDTH} {height}">',
        f"<title>{escape(flow.described())}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for i, lines in enumerate(boxes):
        parts += _box(_top(i), *lines)
    for i, (left, right, colour) in enumerate(between[: len(boxes) - 1]):
        parts += _arrows(i, colour)
        parts += [*_labels(i, left, "end"), *_labels(i, right, "start")]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _sent(flow: Flow) -> list[Label]:
    sealed = [(_SEALED, f"{flow.sealed_up:,} encrypted")] if flow.sealed_up else []
    if not flow.clear_up:
        return sealed
    return [*sealed, (_CLEAR, f"{flow.clear_up:,} in the clear:"), *_listed(flow.clear_kinds)]


def _listed(kinds: Sequence[str]) -> list[Label]:
    return [(_CLEAR, line) for line in wrap(", ".join(kinds), _LETTERS)]


def _asked(flow: Flow) -> list[Label]:
    asked = flow.opened + flow.scores + flow.refused
    return [(_SEALED, f"{asked:,} to be opened"), *_refused(flow)]


def _opened(flow: Flow) -> list[Label]:
    totals = [(_TEXT, f"opened {flow.opened:,} totals"), (_TEXT, f"of {flow.fewest}+ clients each")]
    scores = [(_TEXT, f"opened {flow.scores:,} scores"), (_TEXT, "of one client each")]
    return [*(totals if flow.opened else []), *(scores if flow.scores else [])] or [
        (_TEXT, "opened nothing")
    ]


def _joined(lines: Sequence[Label]) -> str:
    return " ".join(text for _, text in lines).replace("each opened", "each and")


def _refused(flow: Flow) -> list[Label]:
    return [(_REFUSED, f"{flow.refused:,} refused")] if flow.refused else []


def _top(box: int) -> int:
    return 10 + box * (_BOX_HEIGHT + _GAP)


def _box(top: int, name: str, what: str) -> Iterator[str]:
    left = MIDDLE - _BOX_WIDTH // 2
    yield (
        f'<rect x="{left}" y="{top}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="8" '
        f'fill="#ffffff" stroke="{_TEXT}"/>'
    )
    yield _line(MIDDLE, top + 19, "middle", (_TEXT, name), ' font-weight="bold"')
    yield _line(MIDDLE, top + 36, "middle", (_TEXT, what))


def _arrows(gap: int, colour: str) -> Iterator[str]:
    """Yield an arrow down on the left, and one up on the right."""
    above, below = _top(gap) + _BOX_HEIGHT + 3, _top(gap + 1) - 3
    yield from _arrow(MIDDLE - 12, above, below, -8, colour)
    yield from _arrow(MIDDLE + 12, below, above, 8, _TEXT)


def _arrow(x: int, start: int, end: int, head: int, colour: str) -> Iterator[str]:
    yield f'<path d="M{x} {start}V{end}" stroke="{colour}" stroke-width="2" fill="none"/>'
    tip = f"M{x - 5} {end + head}L{x} {end}L{x + 5} {end + head}"
    yield f'<path d="{tip}" stroke="{colour}" stroke-width="2" fill="none"/>'


def _labels(gap: int, lines: Sequence[Label], anchor: str) -> Iterator[str]:
    """Yield lines of text beside the arrow, about its middle."""
    x = MIDDLE - 22 if anchor == "end" else MIDDLE + 22
    middle = _top(gap) + _BOX_HEIGHT + _GAP // 2
    first = middle - _LINE * (len(lines) - 1) // 2 + 4
    for i, line in enumerate(lines):
        yield _line(x, first + i * _LINE, anchor, line)


def _line(x: int, y: int, anchor: str, line: Label, more: str = "") -> str:
    colour, text = line
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(text)}</text>'
    )
