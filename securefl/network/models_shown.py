"""Record of a client: the lineage of the models that a server has shown it in a job.

A small file for each job, below the client's identity, which stays once the run is over. What the
server says then must follow from it, on another connection, in another session and after a restart.
What does not is kept beside it, with the server's signatures: others can check them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field, TypeAdapter

from securefl.errors import ModelRefused, PeerError, RunFolderError, SignatureRefused
from securefl.federation.lineage import Shown, Statement, beginning, contradict, extended
from securefl.io.files import read_bounded
from securefl.io.json import parsed
from securefl.network.frames import Link
from securefl.network.store import write_own

FOLDER = "models-shown"
_MAX_BYTES = 2**13


@dataclass(frozen=True, slots=True)
class Said:
    """Statement with the certificate of the server that has signed it."""

    statement: Statement
    certificate: Annotated[str, Field(max_length=4096)]
    """Certificate of the server's identity, in PEM."""
    measured: bool = False
    """True where columns are measured by this model, or one before, and are so never again."""

    @classmethod
    def by(cls, server: Link, statement: Statement, *, measured: bool) -> "Said":
        """Return it as it came over a connection; raises SignatureRefused."""
        pem = server.certificate.public_bytes(Encoding.PEM).decode()
        said = cls(statement, pem, measured)
        said.check()
        return said

    def check(self) -> None:
        """Raise SignatureRefused unless the certificate's key has signed the statement."""
        try:
            key = x509.load_pem_x509_certificate(self.certificate.encode()).public_key()
        except ValueError:
            raise SignatureRefused("a certificate that is none") from None
        self.statement.check(cast("Ed25519PublicKey", key))


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two statements of which one is not true; whoever has the roster can tell who has signed."""

    known: Said
    then: Said
    shown: list[Shown]
    """Models that `then` is of, its own the last one."""

    def check(self) -> None:
        """Raise SignatureRefused unless both are signed and contradict each other."""
        self.known.check()
        self.then.check()
        if not contradict(self.known.statement, self.then.statement, self.shown):
            raise SignatureRefused("the two statements may both be true")


_SAID = TypeAdapter(Said)
CONTRADICTION = TypeAdapter(Contradiction)


@dataclass(slots=True)
class ModelsShown:
    """The record of one client in one job."""

    folder: Path
    """Folder of the client."""
    client: str
    job: str
    _last: Said | None = field(default=None)
    """Statement on the last round; None before it is read."""

    @property
    def path(self) -> Path:
        """File with the server's last statement."""
        return self.folder / FOLDER / f"{self.job}.json"

    @property
    def evidence(self) -> Path:
        """File with a contradiction."""
        return self.path.with_suffix(".contradiction.json")

    def last(self) -> Statement | None:
        """Return the server's last statement; None where there is none.

        Raises:
            RunFolderError: the file is damaged.
        """
        if self._last is None and self.path.exists():
            try:
                self._last = parsed(_SAID, read_bounded(self.path, _MAX_BYTES), RunFolderError)
            except (OSError, RunFolderError) as error:
                raise RunFolderError(
                    f"{self.path}: damaged ({error}), and without it a server could show this "
                    "client other models than before: put a copy of it back if you have one"
                ) from error
        return self._last.statement if self._last else None

    def follow(
        self,
        now: Shown,
        before: Sequence[Shown],
        after: int,
        signature: str,
        server: Link,
        *,
        measures: bool,
    ) -> str:
        """Keep that a round begins, and return the lineage of the rounds before it.

        Args:
            now: the round, with the digest of the model as it came.
            before: models of earlier rounds, by the server.
            after: round that these come after; 0 where they are all.
            signature: the server's, over the lineage up to `now`.
            server: the connection to it.
            measures: True where the model asks for columns to be measured.

        Raises:
            ModelRefused: what the server shows does not follow from what it has shown before, or
                asks for columns to be measured again.
            PeerError: it leaves models out, or has not signed.
            RunFolderError: the record is damaged, or cannot be written.
        """
        known, shown = self.last(), [*before, now]
        if after and (known is None or known.round != after):
            raise PeerError(f"{server.name}: leaves out models that this client was not shown")
        rounds = [after, *(one.round for one in shown)]
        if any(one >= then for one, then in itertools.pairwise(rounds)):
            raise PeerError(f"{server.name}: shows models of rounds in no order")
        past = lineage = known.lineage if after and known else beginning(self.job)
        reached = {after: lineage}
        for one in shown:
            past, lineage = lineage, extended(lineage, one)
            reached[one.round] = lineage
        try:
            statement = Statement(self.job, now.round, lineage, signature)
            was_measured = self._last is not None and self._last.measured
            said = Said.by(server, statement, measured=was_measured or not measures)
        except SignatureRefused:
            raise PeerError(f"{server.name}: has not signed the models that it shows") from None
        if known and reached.get(known.round) != known.lineage:
            raise self._other(said, shown)
        if was_measured and measures:
            raise ModelRefused(
                f"{self.client}: round {now.round}: {server.name} has columns measured again, and "
                "the sums of two lists of clients would show who is on one alone. This client "
                "takes no part: tell the others"
            )
        write_own(self.path, _SAID.dump_json(said), self.path)
        self._last = said
        return past

    def _other(self, then: Said, shown: list[Shown]) -> ModelRefused:
        """Keep what the server says beside what it has said, and return the error."""
        known = self._last
        if known is None:
            raise RuntimeError("nothing that could be contradicted")
        found = Contradiction(known, then, shown)
        write_own(self.evidence, CONTRADICTION.dump_json(found), self.evidence)
        number, before = then.statement.round, known.statement.round
        what = (
            f"goes back to round {number}, and this client was in round {before}"
            if number < before
            else f"shows other models of the rounds up to {before} than it has shown before"
        )
        return ModelRefused(
            f"{self.client}: round {number}: the server {what}. A server that resumes a run shows "
            "the same ones: this one lies, or goes on from an older copy of its folder. This "
            f"client takes no part. {self.evidence} has what the server has signed: show it to the "
            f"others. If all of you know why, remove {self.path}"
        )
