"""The public files of a match key: a context without its secret key, and its parameters."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Literal

import tenseal as ts

from securefl.crypto.artefact import (
    CODEC,
    KeyFile,
    Sha256,
    canonical,
    decoded,
    digest,
    read_key_file,
    require_digest,
)
from securefl.crypto.contexts import public_context
from securefl.crypto.match_params import MatchParameters

MATCH_PARAMETERS_FORMAT: Literal["securefl-match-parameters/1"] = "securefl-match-parameters/1"
MATCH_PUBLIC_KEY_FORMAT: Literal["securefl-match-public-key/1"] = "securefl-match-public-key/1"
MatchFormat = Literal["securefl-match-parameters/1", "securefl-match-public-key/1"]


class MatchKeyFile(KeyFile):
    """The text form of a public artefact of matches.

    A ciphertext's shape is not in it: it follows from the context.
    """

    parameters: MatchParameters
    context: str
    sha256: Sha256
    """Over all other fields: the context does not show every parameter."""

    def content(self) -> bytes:
        """What the digest is over."""
        return canonical(self.model_dump(exclude={"sha256"}))


@dataclass(frozen=True, slots=True)
class MatchArtefact:
    """A context without its secret key, and what is to be known of it."""

    context: bytes
    key_id: str
    parameters: MatchParameters

    def to_json(self, format_: MatchFormat) -> str:
        """The artefact as text; it holds nothing secret."""
        file = MatchKeyFile(
            format=format_,
            codec=CODEC,
            key_id=self.key_id,
            parameters=self.parameters,
            context=base64.b64encode(self.context).decode(),
            sha256="0" * 64,
        )
        stated = file.model_copy(update={"sha256": digest(file.content())})
        return stated.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str, format_: MatchFormat) -> MatchArtefact:
        """Parse a key file; TenSEAL sees none of it yet.

        Raises:
            KeyFileError: damaged, or of another role or TenSEAL version.
        """
        file = read_key_file(text, MatchKeyFile, format_)
        require_digest(file.sha256, file.content())
        return cls(decoded(file.context), file.key_id, file.parameters)

    def parsed(self) -> ts.Context:
        """TenSEAL's context, of just these parameters and without a secret key.

        Raises:
            KeyFileError: it is another one.
        """
        return public_context(self.context, self.parameters)
