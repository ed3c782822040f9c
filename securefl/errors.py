"""Errors that SecureFL raises on purpose.

SecureFLError
├── ConfigError (ValueError)        a setting is wrong; the message names the key and the way out
│   └── CouplingFound               a model mixes the records that privacy must tell apart
├── DataError (ValueError)          a client's data or a model cannot be used
├── ValueRefused (ValueError)       a tensor is NaN, infinite or too large to be sealed
├── Diverged                        training left the finite numbers
├── MessageRefused                  bytes from outside failed a check before any parser saw them
│   ├── SignatureRefused            not signed by the client that it names
│   │   ├── UnknownSender           who is no client of this run
│   │   ├── SenderExpired           whose certificate is no longer valid, or not yet
│   │   └── SenderRevoked           whose certificate was taken back
│   ├── KeyMismatch                 sealed under another key, or in another epoch
│   ├── Replayed                    of another run or round
│   ├── Relabelled                  of another name, encoding or size than it should have
│   ├── OtherModel                  of a client that was sent another model than the others
│   ├── BlindTotalRefused           a total that is sealed for clients, and not for this one
│   └── Duplicate                   a second one of the same client
├── PeerError                       another process is gone, or does not keep to the protocol
│   ├── WorkerLost                  a worker of a simulation has died: the round runs again
│   └── NotOfThisRun (ConfigError)  the server has no place for this process: no restart mends it
├── ModelRefused                    a model that contradicts those before it, or is plainly crafted
├── OpeningRefused                  the authority does not open this total
│   ├── TooFewContributions         fewer contributions than `min_clients`
│   │   └── ClientLost              a client is in one total of a round and not in the next
│   ├── OtherSettings (ConfigError) the authority has others than the server: no restart mends it
│   ├── NotBlind                    a total that the server may not read, or one that it must
│   └── TotalRefused (MessageRefused) no total of honest clients
├── KeyFileError                    a key file is missing, damaged, or of the wrong role
│   ├── WrongPassphrase
│   ├── FileSignatureRefused        not as the consortium's certificate authority signed it
│   ├── ForeignAuthority            of another consortium's certificate authority
│   ├── RequestRefused              a signing request that gets no certificate
│   ├── SecretFound                 a secret where none may be
│   └── CertificateRefused          a certificate that does not make its holder what it takes
│       ├── CertificateExpired      or not valid yet
│       ├── CertificateRevoked
│       └── UnknownClient           the roster does not list it
└── RunFolderError                  a run's folder cannot be written or resumed
    └── OtherRun (ConfigError)      it holds another run, or is in use: no restart mends it
"""

from collections.abc import Sequence


class SecureFLError(Exception):
    """Base of every error below, for a caller to catch.

    Examples:
        >>> try:
        ...     securefl.load_config(settings=["solver.mu=0.1"])
        ... except securefl.SecureFLError as error:
        ...     print(error)
        solver.mu = 0.1 is read with solver.name = "fedprox" or "moon" alone, ...
    """


class ConfigError(SecureFLError, ValueError):
    """Setting that is unknown, out of range, or does not go with another one."""


class CouplingFound(ConfigError):
    """Model under differential privacy that lets one record of a batch act on others' releases."""

    def __init__(self, message: str, layer: str) -> None:
        """Take the dotted name of the submodule that mixes records; "model" for the whole."""
        super().__init__(message)
        self.layer = layer


class DataError(SecureFLError, ValueError):
    """Data or a model that the run cannot use."""


class ValueRefused(SecureFLError, ValueError):
    """Value that must not be sealed: NaN, infinite, or out of the channel's range.

    The message shows the value, to the client that it belongs to; others are told `Refused`.
    """


class Diverged(SecureFLError):
    """Training left the finite numbers."""


class MessageRefused(SecureFLError):
    """A message, or the total of several, is not what it must be; nothing was added or released."""


class SignatureRefused(MessageRefused):
    """The message is not signed by the client that it names."""


class UnknownSender(SignatureRefused):
    """The message names a sender who is no client of this run."""


class SenderExpired(SignatureRefused):
    """The sender's certificate is no longer valid, or not yet."""


class SenderRevoked(SignatureRefused):
    """The consortium has taken the sender's certificate back."""


class KeyMismatch(MessageRefused):
    """The message is sealed under another key, or under one of another epoch."""


class Replayed(MessageRefused):
    """The message is of another run or round."""


class Relabelled(MessageRefused):
    """The message has another name, encoding or size than the one that is expected."""


class OtherModel(MessageRefused):
    """The message's sender was sent another model: its values in a total would not hide."""


class BlindTotalRefused(MessageRefused):
    """A total that is sealed for clients does not open for this one: changed, or of others."""


class Duplicate(MessageRefused):
    """The client has sent its message already."""


class PeerError(SecureFLError):
    """The process at the other end is gone, is not who it should be, or sends what none may."""


class WorkerLost(PeerError):
    """A worker of a simulation has died in the middle of a round, which is to run again."""


class NotOfThisRun(PeerError, ConfigError):
    """The server has sent this process home for good: by its settings, its code or its name."""


class ModelRefused(SecureFLError):
    """The server shows a client a model that no honest one would: the client takes no part."""


class OpeningRefused(SecureFLError):
    """The authority does not open this total."""


class TooFewContributions(OpeningRefused):
    """A total of so few clients would show one client's values to another."""


class ClientLost(TooFewContributions):
    """Clients were lost between two totals of a round: the round counts for nothing."""

    def __init__(self, message: str, clients: Sequence[str]) -> None:
        """Name the clients."""
        super().__init__(message)
        self.clients = tuple(clients)
        """Clients that are in the first total and not in this one, by name."""


class OtherSettings(OpeningRefused, ConfigError):
    """The authority or an officer has other settings than the server."""


class NotBlind(OpeningRefused):
    """The server asks to read a total that is for clients alone, or the other way round."""


class TotalRefused(OpeningRefused, MessageRefused):
    """The total is none that honest clients make: one of them has sent rubbish, or is no such."""


class KeyFileError(SecureFLError):
    """A key file is missing, damaged, or not one that this role may hold."""


class WrongPassphrase(KeyFileError):
    """The passphrase does not open the secret key, or the file was changed."""


class FileSignatureRefused(KeyFileError):
    """A file, or a certificate, is not as the consortium's certificate authority signed it."""


class ForeignAuthority(KeyFileError):
    """A file or certificate is of another consortium's certificate authority."""


class RequestRefused(KeyFileError):
    """A signing request that gets no certificate."""


class SecretFound(KeyFileError):
    """A secret lies where none may be, or was about to be written there."""


class CertificateRefused(KeyFileError):
    """A certificate that does not give its holder the role in this consortium that it takes."""


class CertificateExpired(CertificateRefused):
    """The certificate is no longer valid, or not yet."""


class CertificateRevoked(CertificateRefused):
    """The consortium has taken the certificate back."""


class UnknownClient(CertificateRefused):
    """The roster lists no such client or server, or lists it with another certificate."""


class RunFolderError(SecureFLError):
    """A run's folder cannot be created, written or resumed."""


class OtherRun(RunFolderError, ConfigError):
    """The folder holds a run of other settings, or another process is at work on it."""
