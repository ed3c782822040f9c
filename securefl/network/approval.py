"""Approval of a job by a site: settings, and what they have leave the site, signed by it.

The signature is over all other fields, as JSON in one form, by the Ed25519 key of the site's own
identity, behind a prefix that no other signature of that key has.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.build.job import Job
from securefl.build.own_model import code_of
from securefl.build.review import Review, review
from securefl.crypto.artefact import Moment, Sha256, canonical, moment
from securefl.errors import ConfigError
from securefl.io.files import read_bounded
from securefl.io.json import require_plain
from securefl.network.identity import ProcessIdentity
from securefl.settings.digests import differing, digests_by_setting, settings_digest
from securefl.settings.tables import Config

APPROVED = "approved.json"
"""Name of the file, beside the site's own or in the folder of its identity."""
SIGNED_AS = b"SecureFL approval 1\0"
"""Prefix of what is signed as an approval."""
MAX_BYTES = 2**20


class Leaving(BaseModel):
    """Message that would leave the site; see `build.review.Outgoing`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    n_values: int
    sealed: bool
    sized: bool
    n_rounds: int


class Approval(BaseModel):
    """Approval of one job by one site."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["securefl-approval/2"] = "securefl-approval/2"
    site: Annotated[str, Field(max_length=100)]
    approved: Moment
    settings: Sha256
    """Digest of the settings that all parties share."""
    by_setting: dict[str, dict[str, str]]
    """Short digest of each of them, which tells where others differ."""
    code: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    """Digest of the files of the model, where the settings name code."""
    leaves: list[Leaving]
    """Messages that leave the site, as `securefl site review` lists them."""
    epsilon: str
    """ε of all rounds; none, or infinite."""
    shows_size: bool
    """True where the server learns the site's number of samples."""
    signature: Annotated[str, Field(pattern=r"^([0-9a-f]{128})?$")] = ""

    @classmethod
    def of(cls, job: Job, site: str, at: datetime) -> Self:
        """Return what a site approves of a job, not signed yet; raises as `review`."""
        found = review(job)
        return cls(
            site=site,
            approved=moment(at),
            settings=settings_digest(job.config),
            by_setting=digests_by_setting(job.config),
            code=code_of(job.config),
            leaves=_leaving(found),
            epsilon=_epsilon(found),
            shows_size=found.shows_size,
        )

    def text(self) -> str:
        """Return the file's text."""
        return self.model_dump_json(indent=1) + "\n"

    def signed(self, key: Ed25519PrivateKey) -> Self:
        """Return the approval with a signature by this key."""
        return self.model_copy(update={"signature": key.sign(self._to_be_signed()).hex()})

    def _to_be_signed(self) -> bytes:
        return SIGNED_AS + canonical(self.model_dump(exclude={"signature"}))

    def require_signed_by(self, identity: ProcessIdentity, at: datetime) -> None:
        """Raise ConfigError unless this site has signed it, and may sign at this time."""
        if self.site != identity.name:
            raise ConfigError(
                f"is the approval of {self.site!r:.100}, and this site is {identity.name}"
            )
        try:
            public = identity.key.public_key()
            public.verify(bytes.fromhex(self.signature), self._to_be_signed())
        except InvalidSignature:
            raise ConfigError(
                f"is not signed by {identity.name}'s identity: it was changed or forged, or the "
                "identity is a new one"
            ) from None
        require_current(identity.name, identity.certificate, at)

    def require_settings(self, config: Config) -> None:
        """Raise ConfigError unless it approves of exactly these settings."""
        if self.settings != settings_digest(config):
            where = differing(self.by_setting, digests_by_setting(config))
            raise ConfigError(f"approves of other settings than these: they differ in {where}")

    def require_job(self, job: Job) -> None:
        """Raise ConfigError unless exactly what was approved leaves the site, by the same code."""
        if self.code != code_of(job.config):
            raise ConfigError(
                "approves of other code, which the settings name, than is installed here"
            )
        found = review(job)
        now = _leaving(found), _epsilon(found), found.shows_size
        if now != (self.leaves, self.epsilon, self.shows_size):
            raise ConfigError("approves of other messages than this release would send")


def _leaving(found: Review) -> list[Leaving]:
    return [
        Leaving(
            name=m.name, n_values=m.n_values, sealed=m.sealed, sized=m.sized, n_rounds=m.n_rounds
        )
        for m in found.outgoing
    ]


def _epsilon(found: Review) -> str:
    if found.epsilon is None:
        return "none"
    return f"{found.epsilon:.6g}".replace("inf", "infinite")


def require_current(name: str, certificate: x509.Certificate, at: datetime) -> None:
    """Raise ConfigError where a site's certificate is not valid at this time."""
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= at <= last:
        raise ConfigError(
            f"{name}'s certificate is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} "
            "UTC: it signs and approves nothing now; renew it with: securefl keys renew request"
        )


class ApprovedJob:
    """Approval that a site requires, held against the job in two steps."""

    def __init__(self, path: Path, identity: ProcessIdentity) -> None:
        """Read the file; raises ConfigError where it is missing, or not this site's."""
        self._path = path
        try:
            text = read_bounded(path, MAX_BYTES).decode()
            require_plain(text, ConfigError)
            self._approval = Approval.model_validate_json(text)
            self._approval.require_signed_by(identity, datetime.now(UTC))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise self._refused(f"cannot be read ({reason})") from error
        except ValidationError as error:
            raise self._refused("is no approval") from error
        except ConfigError as error:
            raise self._refused(str(error)) from error

    def require_settings(self, config: Config) -> None:
        """Raise ConfigError unless it is of these settings; nothing of them was built yet."""
        try:
            self._approval.require_settings(config)
        except ConfigError as error:
            raise self._refused(str(error)) from error

    def require_job(self, job: Job) -> None:
        """Raise ConfigError unless it is of all that the job has leave this machine."""
        try:
            self._approval.require_job(job)
        except ConfigError as error:
            raise self._refused(str(error)) from error

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self._path}: {why}. This site takes part in jobs that it has approved: look at this "
            "one, and approve it, with: securefl site review JOB.toml --identity DIR --approve"
        )
