"""Lineage of a job's models: one digest chained over all models that its rounds began with.

    c_0 = H(job)    c_r = H(c, r, digest of the model that round r begins with)

where c is the digest of the round begun before. Rounds that pass before they begin are left out:
the model stays. Each signed header of a client names c_r, with its terms, so that no total is
opened of clients that were shown different models, then or in an earlier round.

The server signs c_r for each client. Two of its statements that say different things of one round
prove that it has shown two models; an honest server signs one: a round begins once the checkpoint
of the round before stands, so that a round that runs again begins with the same model.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field

from securefl.errors import SignatureRefused

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_OfALine = Annotated[str, Field(exclude=True)]
"""Part of the server's own line on a model, and of no proof that a client keeps."""
SIGNED_AS = b"SecureFL models 1\0"
"""Prefix of what is signed here; nothing else that an identity signs has it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Model that a round began with."""

    round: Annotated[int, Field(ge=1, lt=2**31)]
    model: Digest
    """SHA-256 of the state, in hex: `total.state_digest`."""
    at: _OfALine = field(default="", compare=False, repr=False)
    """Time at which the server began the round, UTC; empty elsewhere, and in older folders."""
    run: _OfALine = field(default="", compare=False, repr=False)
    """Id of the session in which it was written; empty before that."""


def beginning(job: str) -> str:
    """Return the lineage of a job before its first round, 64 hex digits."""
    return hashlib.sha256(f"SecureFL lineage 1\0{job}".encode()).hexdigest()


def extended(lineage: str, shown: Shown) -> str:
    """Return the lineage with one more model, 64 hex digits."""
    text = f"SecureFL lineage 1\0{lineage} {shown.round} {shown.model}"
    return hashlib.sha256(text.encode()).hexdigest()


def over(lineage: str, shown: Iterable[Shown]) -> str:
    """Return the lineage with these models, in their order."""
    for one in shown:
        lineage = extended(lineage, one)
    return lineage


@dataclass(frozen=True, slots=True)
class Statement:
    """Statement of a server on the models that it has shown, up to a round."""

    job: Digest
    round: Annotated[int, Field(ge=1, lt=2**31)]
    lineage: Digest
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
    """Ed25519 signature by the server's identity, 128 hex digits."""

    @staticmethod
    def content(job: str, round_number: int, lineage: str) -> bytes:
        """Return the bytes that the server signs."""
        return SIGNED_AS + json.dumps([job, round_number, lineage]).encode()

    def check(self, key: Ed25519PublicKey) -> None:
        """Raise SignatureRefused unless the server of this key has said it."""
        try:
            signature = bytes.fromhex(self.signature)
            key.verify(signature, self.content(self.job, self.round, self.lineage))
        except InvalidSignature:
            raise SignatureRefused("not signed by the server") from None


@dataclass(slots=True)
class Lineage:
    """The server's own record of what it has shown in a job."""

    job: str
    sign: Callable[[bytes], bytes]
    """Function that signs with the server's identity."""
    shown: list[Shown] = field(default_factory=list)
    """Model of each round that was begun."""
    write: Callable[[Sequence[Shown]], None] = lambda _shown: None
    """Function that keeps them all."""
    signature: str = ""
    """Signature over the lineage of the round that was begun last."""

    def before(self, round_number: int) -> str:
        """Return the lineage of all rounds before this one."""
        earlier = (one for one in self.shown if one.round < round_number)
        return over(beginning(self.job), earlier)

    def between(self, after: int, round_number: int) -> list[Shown]:
        """Return the models of the rounds after one, and before another."""
        return [one for one in self.shown if after < one.round < round_number]

    def note(self, shown: Shown) -> None:
        """Keep and sign the model of a round that is about to begin, before anybody is sent it.

        A round that runs again begins with the same model.
        """
        known = [one for one in self.shown if one.round < shown.round] + [shown]
        if known != self.shown:
            self.write(known)
            self.shown = known
        lineage = over(beginning(self.job), known)
        self.signature = self.sign(Statement.content(self.job, shown.round, lineage)).hex()


def contradict(known: Statement, then: Statement, shown: Sequence[Shown]) -> bool:
    """Return True where two statements of a server cannot both be true, which proves a lie.

    `shown` are the models that the later statement is of, its own the last one.
    """
    is_later = known.job == then.job and known.round <= then.round
    if not is_later or over(beginning(then.job), shown) != then.lineage:
        return False
    earlier = [one for one in shown if one.round <= known.round]
    return over(beginning(then.job), earlier) != known.lineage
