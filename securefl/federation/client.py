"""Client's side of the exchange: it seals and signs each message that leaves it.

Identity keys of simulated clients, and their roster.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefl.crypto.derived import SEED_BYTES
from securefl.errors import BlindTotalRefused, ConfigError, DataError, PeerError
from securefl.exchange.blind import BlindReader, BlindTotal
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.layout import gains_of, pack
from securefl.exchange.profile_match import Profile, ProfileSealer
from securefl.exchange.sums import ONE_TIME, MessageId, OpenedSum, Sealed, Sealer, Sender
from securefl.federation.contribution import PlainContribution
from securefl.federation.message import (
    NUMBER,
    Expected,
    Roster,
    card_expected,
    encode_message,
    header_for,
    number_expected,
)
from securefl.federation.total import RELEASED, read_total
from securefl.io.uncopyable import Held, SecretBytes
from securefl.types import PROFILE, Kind, MessageSpec, NamedTensors, Weighing


@dataclass(slots=True)
class Client(Held):
    """Participant of a run, with its weight, its sealers and its signing key."""

    name: str
    weight: float
    """Weight in (0, 1]; those of all clients sum to at most one."""
    sealers: Mapping[Kind, Sealer]
    """Sealer of each kind of value."""
    equal_weight: float = 1.0
    """Weight in sums where all clients count alike; at most 1/n for n clients."""
    profile_sealer: ProfileSealer | None = None
    """Sealer of its profile; None where nobody asks for one."""
    card_keys: CardKeys | None = None
    """Keys that it makes its cards for; None where it seals nothing."""
    blind: bool = False
    """True where it takes a sealed sum's total in mid-round as sealed for itself, and no other."""
    signing_key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate, repr=False)
    _senders: dict[tuple[str, str], Sender] = field(default_factory=dict, repr=False)
    """Secrets of sessions under a key. Each follows from the signing key, so that a client that
    starts again in a session has the same.
    """

    @property
    def identity(self) -> Ed25519PublicKey:
        """Public identity key, for the roster."""
        return self.signing_key.public_key()

    def identity_secret(self) -> bytes:
        """Return the secret identity key, 32 bytes, for a worker process that plays this client."""
        return self.signing_key.private_bytes_raw()

    def contribute(  # noqa: PLR0913  (what a signed header has)
        self,
        run: str,
        round_number: int,
        spec: MessageSpec,
        tensors: NamedTensors,
        times: int = 1,
        state: str = "",
        *,
        model: str = "",
    ) -> bytes:
        """Return the signed message with this client's values, sealed, which count `times` times.

        `state` is the digest of all that this client was sent in the round so far
        (`RoundContext.told`, `with_total`, `Terms.bind`), `model` that of the state that the round
        began with.

        Raises:
            ValueRefused: a value is NaN, infinite or out of range; nothing is sealed.
        """
        sealer, plain = self.sealers[spec.kind], self.hand_over(spec, tensors, times)
        about, n_values = (run, round_number), len(plain.values)
        expected = Expected.over(sealer, about, spec.name, n_values, state, model)
        sender = self.sender(run, sealer.key_id)
        sealed = sealer.seal(plain.values, plain.weight, expected.about, sender)
        del plain  # large, and no longer needed
        return self._signed(expected, sealed)

    def hand_over(
        self, spec: MessageSpec, tensors: NamedTensors, times: int = 1
    ) -> PlainContribution:
        """Return the plain values and weight that `contribute` seals.

        Raises:
            ValueRefused: a value is NaN, infinite or out of range.
        """
        sealer = self.sealers[spec.kind]
        limit, gains = sealer.max_value(spec.n_values), sealer.gains(spec)
        values = pack(f"{self.name}, {spec.name}", tensors, limit, gains)
        return PlainContribution(values, self.weight_in(spec, times))

    def weight_in(self, spec: MessageSpec, times: int = 1) -> float:
        """Return this client's weight in a sum where it counts `times` times."""
        return self.equal_weight if spec.weighing is Weighing.EQUAL else times * self.weight

    def read_total(
        self, run: str, round_number: int, spec: MessageSpec, opened: OpenedSum | BlindTotal
    ) -> OpenedSum:
        """Return a total in mid-round, without gains, as this client reads it.

        Raises:
            BlindTotalRefused: it does not open for this client, is of another message, counts
                other clients than it lists, or is in the clear where it must be sealed.
        """
        sealer = self.sealers[spec.kind]
        if not (self.blind and sealer.form == ONE_TIME):
            if isinstance(opened, BlindTotal):
                raise BlindTotalRefused("is sealed for clients, and by the settings it is not")
            return opened
        if not isinstance(opened, BlindTotal):
            raise BlindTotalRefused("is in the clear, and by the settings it is sealed")
        about = MessageId(run, round_number, spec.name, spec.n_values)
        reader = cast("BlindReader", sealer)
        content, n_listed = reader.opened(opened, about, self.sender(run, sealer.key_id))
        try:
            total = read_total(content, spec.n_values, RELEASED, "the authority")
        except PeerError as error:
            raise BlindTotalRefused(f"is none: {error}") from error
        if total.n_clients != n_listed:
            raise BlindTotalRefused(f"counts {total.n_clients} clients, and lists {n_listed}")
        return OpenedSum(total.values / gains_of(spec), total.weight, total.n_clients)

    def send_profile(self, run: str, round_number: int, profile: Profile, state: str = "") -> bytes:
        """Return the signed message with this client's profile, sealed.

        Args:
            run: session.
            round_number: round before which the profile is asked for.
            profile: what is sealed.
            state: digest of what it was made under (`survey.profiled_under`).

        Raises:
            ValueRefused: the profile cannot be sealed.
        """
        sealer = self.profile_sealer
        if sealer is None:
            raise RuntimeError(f"{self.name} was given nothing to seal a profile with")
        about, n_values = (run, round_number), 2 * len(profile)
        expected = Expected.over(sealer, about, PROFILE, n_values, state)
        sender = self.sender(run, sealer.key_id)
        return self._signed(expected, sealer.seal(profile, expected.about, sender))

    def send_number(self, run: str, round_number: int, name: str, number: float) -> bytes:
        """Return the signed message with one number in the clear."""
        expected = number_expected(run, round_number, name)
        return self._signed(expected, Sealed(NUMBER.pack(number)))

    def send_cards(self, run: str) -> bytes:
        """Return the signed message with this client's cards of a session.

        Raises:
            DataError: it seals nothing.
        """
        keys = self.card_keys
        if keys is None:
            raise DataError(f"{self.name}: is asked for cards, and seals nothing by its settings")
        cards = keys.cards(run, self.sender(run, keys.key_id))
        return self._signed(card_expected(run, keys), Sealed(cards))

    def sender(self, run: str, key_id: str) -> Sender:
        """Return this client with its secret of a session under a key; the same if asked again."""
        if (run, key_id) not in self._senders:  # with a few keys, of a few sessions
            secret = self._derived("SecureFL client secret 1", run, key_id)
            self._senders[run, key_id] = Sender(self.name, secret)
        return self._senders[run, key_id]

    def draws(self, run: str, seed: int) -> int:
        """Return the seed of what this client draws in a session, which nobody else knows.

        Whoever knew it could look for two sessions in which a client draws alike.
        """
        return int.from_bytes(self._derived("SecureFL draws 1", run, str(seed)), "big")

    def _derived(self, *about: str) -> SecretBytes:
        # A list in JSON, so that no two uses have the same bytes.
        info = json.dumps(about).encode()
        derived = HKDF(SHA256(), SEED_BYTES, salt=None, info=info)
        return SecretBytes(derived.derive(self.identity_secret()))

    def _signed(self, expected: Expected, sealed: Sealed) -> bytes:
        header = header_for(expected, self.name, sealed)
        return encode_message(header, sealed.payload, self.signing_key)


@dataclass(frozen=True, slots=True)
class Identities(Held):
    """Secret keys of all clients and the roster that lists them; only a simulation has several."""

    keys: Mapping[str, Ed25519PrivateKey] = field(repr=False)
    roster: Roster

    @classmethod
    def ephemeral(cls, names: Collection[str]) -> "Identities":
        """Generate keys that stay in memory and end with the process."""
        keys = {name: Ed25519PrivateKey.generate() for name in names}
        return cls(keys, Roster({name: key.public_key() for name, key in keys.items()}))

    def require(self, names: Collection[str]) -> None:
        """Raise ConfigError unless the keys are those of just these clients."""
        if set(self.keys) != set(names):
            raise ConfigError(
                f"the identities are of {', '.join(sorted(self.keys)):.200}, and the clients "
                f"{', '.join(sorted(names)):.200}: name them alike, with data.names"
            )
