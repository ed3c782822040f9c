"""Bodies of frames: small JSON, the global tensors, and totals.

Everything is parsed strictly and held against what its receiver expects; nothing is unpickled.
"""

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Literal, TypeVar

import safetensors.torch
import torch
from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from securefl.crypto.ciphertext_codec import split_payload
from securefl.crypto.one_time import KEY_SUM_BYTES, KeySum, constant_bytes, constant_in
from securefl.crypto.params import MATCHES
from securefl.errors import (
    MessageRefused,
    OtherSettings,
    PeerError,
    SecureFLError,
    TooFewContributions,
    TotalRefused,
)
from securefl.exchange.one_time_match import SCORE_BYTES
from securefl.exchange.opener import Answer, ScorePart
from securefl.federation.lineage import Shown
from securefl.federation.message import (
    MAX_HEADER_BYTES,
    NUMBER,
    Expected,
    Header,
    Hex32,
    SignedHeader,
)
from securefl.federation.server import DueWeight, SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.federation.total import MAX_CLIENTS, Terms
from securefl.io.json import require_plain
from securefl.io.tensors import unshared
from securefl.io.text import printable
from securefl.network.frames import SMALL
from securefl.types import Kind, State

Word = Annotated[str, Field(pattern=r"^\w{1,64}$")]
VERSION = 11
"""Version of the frames between clients and server."""
_LENGTH = struct.Struct("<I")
_SHOWN = struct.Struct("<I32s")
HEAD_BYTES = 2**16
"""Bytes of safetensors' own head beside the tensors, at most; and 256 for each of them."""
MAX_VALUES = 2**26
"""Values of one total that the authority opens, at most."""
MAX_BUNDLE = 2**24
"""Characters of a bundle's files."""
MAX_CARD = 2**15
"""Characters of a client's cards as one signed message, at most."""
MAX_HELLO = 2**14
"""Bytes of a client's first words."""
CARDS_AT_ONCE = 100
"""Clients of one frame of cards, at most."""
MAX_REASON = 500
"""Most characters of a reason: even as escapes they fit into a small frame."""


class Body(BaseModel):
    """JSON body."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def to_bytes(self) -> bytes:
        """Return the JSON that travels."""
        return self.model_dump_json().encode()


Age = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**31)], Annotated[int, Field(ge=0, lt=2**31)]],
    Field(strict=False),
]
"""Epoch, and version of the roster."""


class Hello(Body):
    """First words of a client."""

    version: Annotated[int, Field(ge=1, lt=2**15)] = VERSION
    settings: Hex32
    """Digest of its settings, which must be the server's."""
    by_setting: dict[Word, dict[Word, Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]]] = Field(
        default_factory=dict
    )
    """Short digest of each of them."""
    code: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Digest of the files of its model, where the settings name code."""
    age: Age
    """Age of its bundle."""


class Ready(Body):
    """Question of the server before a round: of no other is anything opened until it asks again."""

    run: Hex32
    settings: Hex32
    """Digest of its settings, which must be the authority's."""
    round: Annotated[int, Field(ge=1, lt=2**31)]
    known: Age
    """Age of the bundles that it has had from this authority; (0, 0) at first."""
    needed: Annotated[int, Field(ge=0, lt=2**62)]
    """Values that the round will have opened."""
    scores: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Scores of profiles that it may have opened."""


class LogRequest(Body):
    """Question of the server for the authority's log of one of its sessions."""

    run: Hex32
    known: Annotated[int, Field(ge=0, lt=2**31)]
    """Number of rows that it has."""


Bundles = dict[Literal["client", "server", "officer"], Annotated[str, Field(max_length=MAX_BUNDLE)]]


def _all_or_none(bundles: Bundles) -> Bundles:
    if bundles and not {"client", "server"} <= bundles.keys():
        raise ValueError("a bundle for one role alone")
    return bundles


class News(Body):
    """Answer of the authority: bundles by role, none where the server has them."""

    bundles: Annotated[Bundles, AfterValidator(_all_or_none)]


Round = Annotated[int, Field(ge=1, lt=2**31)]
RoundsDone = Annotated[int, Field(ge=0, lt=2**31)]


class Welcome(Body):
    """Answer of the server to a client's first words."""

    run: Hex32
    """Id of this session: another one each time that the server begins or resumes."""
    job: Hex32
    """Id of the run's folder, the same in all of its sessions."""


class RoundBegins(Body):
    """Round that begins, and how a client takes part in it; models shown and tensors follow."""

    round: Round
    times: Annotated[int, Field(ge=1, lt=2**31)] = 1
    """Number of times that the client counts."""
    since: RoundsDone
    """The last round in which it counted."""
    whole: bool
    """True where all tensors follow, not just those that differ from the last that were sent."""
    after: RoundsDone = 0
    """Round up to which this client knows the models of earlier rounds; 0 where all follow."""
    shown: RoundsDone = 0
    """Number of these that follow, without the one that this round begins with."""
    signature: Annotated[str, Field(pattern=r"^([0-9a-f]{128})?$")] = ""
    """Signature of the server over the lineage of the models (`federation.lineage`)."""


class QuestionBody(Body):
    """Question to a client, beside its training; tensors follow."""

    round: Round
    name: Annotated[str, Field(max_length=100)]
    unit: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    since: RoundsDone
    whole: bool


class Reason(Body):
    """Reason for an end; empty where all is well."""

    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""
    round: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Number of the round that a client is out of; 0 where it is not about one."""
    diverged: bool = False
    """True where a client leaves since its own values cannot be sent."""
    final: bool = False
    """True where no restart mends it: settings, code or a name are others."""


class Refusal(Body):
    """Reason for which the authority does not open a total."""

    too_few: bool
    rubbish: bool = False
    """True where it is no total of honest clients."""
    final: bool = False
    """True where no restart mends it: settings are others."""
    reason: Annotated[str, Field(max_length=MAX_REASON)]


class CardsGiven(Body):
    """Cards of clients, of a session."""

    run: Hex32
    cards: Annotated[
        dict[
            Annotated[str, Field(max_length=100)],
            Annotated[Base64Bytes, Field(max_length=MAX_CARD)],
        ],
        Field(max_length=CARDS_AT_ONCE),
    ]
    """Signed message of each client."""


class CardsTaken(Body):
    """Clients whose cards are refused, and why."""

    refused: Annotated[
        dict[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=MAX_REASON)]],
        Field(max_length=CARDS_AT_ONCE),
    ]


class Signed(Body):
    """Header as its client signed it."""

    header: Annotated[Base64Bytes, Field(max_length=2 * MAX_HEADER_BYTES)]
    signature: Annotated[Base64Bytes, Field(max_length=128)]
    times: Annotated[int, Field(ge=1, lt=2**31)] = 1
    since: RoundsDone = 0
    """Terms of its sender, which its signature binds (`federation.total.Terms`)."""


class OpenRequest(Body):
    """Fields of a `SumRequest`, all but the ciphertexts, which follow."""

    run: Hex32
    round: Annotated[int, Field(ge=0, lt=2**31)]
    name: Annotated[str, Field(max_length=500)]
    form: Annotated[str, Field(max_length=100)]
    key_id: Hex32
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    n_values: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    state: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    model: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    signed: Annotated[list[Signed], Field(min_length=1, max_length=MAX_CLIENTS)]
    blind: bool = False
    """True where the total is to be sealed for clients alone."""
    due: Annotated[float, Field(gt=0, le=MAX_CLIENTS)] | None = None
    """Weight of a blind total by the settings; None where the server knows no client's."""
    told: bool = True
    """True where weights are known: see `DueWeight.told`."""


Parsed = TypeVar("Parsed", bound=Body)


def parsed(kind: type[Parsed], body: bytes, sender: str) -> Parsed:
    """Parse a JSON body; raises PeerError where it is none of this kind."""
    try:
        require_plain(body, MessageRefused)
        return kind.model_validate_json(body)
    except MessageRefused as error:
        raise PeerError(f"{sender}: bad {kind.__name__} ({error})") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise PeerError(f"{sender}: bad {kind.__name__} ({first['msg']})") from None


def reason(
    text: str, *, round_number: int = 0, diverged: bool = False, final: bool = False
) -> bytes:
    """Return the bytes of a `Reason`, cut to what fits."""
    why = _fitting(text)
    return Reason(reason=why, round=round_number, diverged=diverged, final=final).to_bytes()


def refusal(error: SecureFLError) -> bytes:
    """Return the bytes of a `Refusal`, cut to what fits."""
    too_few, rubbish = (isinstance(error, kind) for kind in (TooFewContributions, TotalRefused))
    final, why = isinstance(error, OtherSettings), _fitting(str(error))
    return Refusal(too_few=too_few, rubbish=rubbish, final=final, reason=why).to_bytes()


def _fitting(text: str) -> str:
    return printable(text)[:MAX_REASON]  # a path in it may be no UTF-8


def cards_taken(refused: Mapping[str, str]) -> bytes:
    """Return the bytes of a `CardsTaken`, each reason cut to what fits."""
    return CardsTaken(refused={name: _fitting(why) for name, why in refused.items()}).to_bytes()


def cards_given(run: str, cards: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a `CardsGiven`."""
    coded = {name: base64.b64encode(message) for name, message in cards.items()}
    return CardsGiven.model_validate({"run": run, "cards": coded}).to_bytes()


def open_request(request: SumRequest | ScoreRequest) -> bytes:
    """Return the frame that goes to the authority before the ciphertexts, or the scores."""
    terms = request.signers if isinstance(request, SumRequest) else {}
    signed = [
        Signed.model_construct(
            header=one.signed,
            signature=one.signature,
            **asdict(terms.get(one.header.sender, Terms())),
        )
        for one in request.signed
    ]
    asked = asdict(request.expected) | {"signed": signed}
    if isinstance(request, SumRequest):
        asked |= {"blind": request.blind}
        if due := request.due:
            asked |= {"due": due.weight, "told": due.told}
    return OpenRequest.model_construct(**asked).to_bytes()


def sum_request(body: OpenRequest, total: bytes) -> SumRequest:
    """Parse an `open_request`; raises MessageRefused where a header is none."""
    signed = _signed_headers(body)
    terms = {
        header.header.sender: Terms(one.times, one.since)
        for header, one in zip(signed, body.signed, strict=True)
    }
    due = None if body.due is None else DueWeight(body.due, body.told)
    return SumRequest(expected(body), total, signed, terms, body.blind, due)


def score_request(body: OpenRequest, content: bytes) -> ScoreRequest:
    """Parse an `open_request`; `content` has a score for each header, one after the other.

    Raises:
        MessageRefused: a header is none, or there are more or fewer scores.
    """
    scores = tuple(split_payload(content, SCORE_BYTES, len(body.signed)))
    return ScoreRequest(expected(body), scores, _signed_headers(body))


def expected(body: OpenRequest) -> Expected:
    """Return the header fields that a request names."""
    names = {own.name for own in fields(Expected)}
    return Expected(**body.model_dump(include=names))


def _signed_headers(body: OpenRequest) -> tuple[SignedHeader, ...]:
    return tuple(_signed_header(one) for one in body.signed)


def _signed_header(signed: Signed) -> SignedHeader:
    try:
        header = Header.model_validate_json(signed.header)
    except ValidationError:
        raise MessageRefused("a signed header that is none") from None
    return SignedHeader(header, signed.header, signed.signature)


def headed(head: Body) -> bytes:
    """Return a JSON body as it stands before the tensors of its frame."""
    text = head.to_bytes()
    return _LENGTH.pack(len(text)) + text


def apart(kind: type[Parsed], body: bytes, sender: str) -> tuple[Parsed, bytes]:
    """Part a JSON body from the tensors behind it; PeerError where it is none of this kind."""
    if len(body) < _LENGTH.size:
        raise PeerError(f"{sender}: bad {kind.__name__} (too short)")
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    if length > SMALL or end > len(body):
        raise PeerError(f"{sender}: bad {kind.__name__} (its head says {length} bytes)")
    return parsed(kind, body[_LENGTH.size : end], sender), body[end:]


def shown_bytes(shown: Sequence[Shown]) -> bytes:
    """Encode the models of earlier rounds: of each its number and its digest, 36 bytes."""
    return b"".join(_SHOWN.pack(one.round, bytes.fromhex(one.model)) for one in shown)


def n_shown_bytes(n_models: int) -> int:
    """Return the exact length of so many models of earlier rounds."""
    return n_models * _SHOWN.size


def shown_apart(n_models: int, body: bytes, sender: str) -> tuple[list[Shown], bytes]:
    """Part what `shown_bytes` wrote of so many models from the tensors behind it.

    Raises:
        PeerError: there are fewer.
    """
    end = n_shown_bytes(n_models)
    if end > len(body):
        raise PeerError(f"{sender}: sent fewer models of earlier rounds than it says")
    return [Shown(n, model.hex()) for n, model in _SHOWN.iter_unpack(body[:end])], body[end:]


def state_bytes(state: State, known: State | None) -> bytes:
    """Encode the global tensors that differ from those of `known`; all of them where None.

    They are named KIND/NAME. What the server keeps to itself stays.
    """
    before = {} if known is None else _named(known)
    tensors = {
        name: value
        for name, value in _named(state).items()
        if name not in before or not torch.equal(_bits(value), _bits(before[name]))
    }
    return bytes(safetensors.torch.save(unshared(tensors)))


def _bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor: of a digest -0.0 is another value than 0.0."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def max_state_bytes(like: State) -> int:
    """Return the largest size of a frame with the tensors of such a state."""
    tensors = _named(like).values()
    size = sum(value.numel() * value.element_size() for value in tensors)
    return size + SMALL + HEAD_BYTES + 1024 * len(tensors)


def read_state(body: bytes, like: State, known: State | None, rounds_done: int) -> State:
    """Parse a state of the names, shapes and types of `like`: what is sent, laid over `known`.

    Raises:
        PeerError: it has others, some are missing, or one is not finite.
    """
    try:
        found = safetensors.torch.load(body)
    except (SafetensorError, ValueError, LookupError) as error:
        raise PeerError(f"the server's model cannot be read ({error})") from error
    wanted = _named(like)
    whole = {**({} if known is None else _named(known)), **found}
    if _layout(whole) != _layout(wanted):
        raise PeerError("the server's model is another one than this client's settings make")
    if spoilt := [name for name, value in found.items() if not value.isfinite().all()]:
        raise PeerError(f"the server's model has values that are not finite, in {spoilt[0]}")
    tensors: dict[Kind, dict[str, Tensor]] = {
        kind: {name: whole[f"{kind}/{name}"] for name in named}
        for kind, named in like.tensors.items()
    }
    return State(rounds_done, tensors)


def _named(state: State) -> dict[str, Tensor]:
    return {f"{kind}/{n}": v for kind, named in state.tensors.items() for n, v in named.items()}


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, object]]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}


def key_sums_bytes(answer: Answer) -> bytes:
    """Encode an officer's sums of keys, in the order of its groups."""
    return b"".join(answer[group].to_bytes() for group in sorted(answer))


def n_key_sums_bytes(n_groups: int) -> int:
    """Return the exact length of sums of keys for so many groups."""
    return n_groups * KEY_SUM_BYTES


def read_key_sums(body: bytes, groups: Sequence[int], n_keys: int, sender: str) -> Answer:
    """Parse what `key_sums_bytes` wrote, of `n_keys` keys for each of these groups.

    Raises:
        PeerError: another length, or no sums of so many keys.
    """
    if len(body) != n_key_sums_bytes(len(groups)):
        raise PeerError(f"{sender}: sums of keys of {len(body)} bytes, expected {len(groups)} sums")
    parts = (body[at : at + KEY_SUM_BYTES] for at in range(0, len(body), KEY_SUM_BYTES))
    try:
        sums = [KeySum.from_bytes(part, n_keys) for part in parts]
    except MessageRefused as error:
        raise PeerError(f"{sender}: {error}") from error
    return dict(zip(sorted(groups), sums, strict=True))


def score_parts_bytes(parts: Sequence[ScorePart]) -> bytes:
    """Encode an officer's parts of scores, score by score, in the order of its groups."""
    ordered = (of[group] for of in parts for group in sorted(of))
    return b"".join(map(constant_bytes, ordered))


def n_score_parts_bytes(n_groups: int, n_scores: int) -> int:
    """Return the exact length of parts of so many scores for so many groups."""
    return n_groups * n_scores * MATCHES.constant_bytes


def read_score_parts(
    body: bytes, groups: Sequence[int], n_scores: int, sender: str
) -> list[ScorePart]:
    """Parse what `score_parts_bytes` wrote; raises PeerError for another length."""
    if len(body) != n_score_parts_bytes(len(groups), n_scores):
        raise PeerError(f"{sender}: parts of {len(body)} bytes, expected {n_scores} scores'")
    size = MATCHES.constant_bytes
    numbers = [constant_in(body[at : at + size]) for at in range(0, len(body), size)]
    n, ordered = len(groups), sorted(groups)
    return [
        dict(zip(ordered, numbers[at : at + n], strict=True)) for at in range(0, n * n_scores, n)
    ]


def scores_bytes(opened: Sequence[float | None]) -> bytes:
    """Encode opened scores; NaN for what is none."""
    return b"".join(NUMBER.pack(math.nan if x is None else x) for x in opened)


def n_scores_bytes(n_scores: int) -> int:
    """Return the exact length of so many opened scores."""
    return NUMBER.size * n_scores


def read_scores(body: bytes, n_scores: int, sender: str) -> list[float | None]:
    """Parse what `scores_bytes` wrote.

    Raises:
        PeerError: another number of scores, or an infinite one.
    """
    if len(body) != n_scores_bytes(n_scores):
        raise PeerError(f"{sender}: scores of {len(body)} bytes, expected {n_scores} scores")
    stored = [score for (score,) in NUMBER.iter_unpack(body)]
    if any(map(math.isinf, stored)):
        raise PeerError(f"{sender}: a score that is not finite")
    return [None if math.isnan(score) else score for score in stored]
