"""TLS 1.3 over a way that shows neither end to the other, and lets others read and write.

Both ends show a transport certificate of the consortium's, and the listener's is for its role.
Then it proves its identity, as it does over gRPC (`network.proof`). Who passes the records on, or
keeps them, can neither read nor change them, and does not see who talks.
"""

import os
import secrets
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509

from securefl.errors import KeyFileError, PeerError
from securefl.network.identity import NONCE_BYTES, Challenge, ProcessIdentity
from securefl.network.trust import Role, Trust
from securefl.nvflare.stream import TlsStream


def callers_tls(identity: ProcessIdentity) -> ssl.SSLContext:
    """Return the context of a caller; raises KeyFileError where its key cannot be handed over."""
    return _tls(identity, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def listeners_tls(identity: ProcessIdentity) -> ssl.SSLContext:
    """Return the context of a listener, for all its connections; raises as `callers_tls`."""
    return _tls(identity, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def _tls(identity: ProcessIdentity, context: ssl.SSLContext) -> ssl.SSLContext:
    # Not `ssl.create_default_context`: it trusts the system's CAs, and writes the keys of all
    # connections to the file that the environment's SSLKEYLOGFILE names.
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=identity.ca_pem.decode())
    if context.protocol is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no connection is resumed: each shows its certificates
    else:
        context.hostname_checks_common_name = False
    _show(identity, context)
    return context


def _show(identity: ProcessIdentity, context: ssl.SSLContext) -> None:
    """Have TLS show the transport certificate, and sign by its key.

    Python reads both from files alone. So the key lies in one for a moment: encrypted by a password
    that is used once and stays in memory, in a folder that nobody else can enter.
    """
    password = secrets.token_urlsafe(32)
    pem = identity.transport_pem + identity.encrypted_transport_key_pem(password.encode())
    try:
        with TemporaryDirectory(prefix="securefl-") as folder:
            path = Path(folder) / "transport.pem"
            with os.fdopen(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(pem)
            context.load_cert_chain(path, password=password)
    except OSError as error:  # of TLS too
        raise KeyFileError(
            f"{identity.name}: its transport key does not reach TLS, through a temporary folder: "
            f"{error.strerror or error}"
        ) from error


async def introduced(
    identity: ProcessIdentity, trust: Trust, role: Role, end: TlsStream
) -> tuple[str, x509.Certificate]:
    """Agree with a listener of that role as a caller; return its name and certificate.

    Raises:
        PeerError: it is nobody who has that role now, or it is gone.
    """
    await end.agree()
    challenge = Challenge(identity.transport_certificate)
    await end.write(challenge.nonce)
    return challenge.check(await end.read(), trust, role)


async def greeted(identity: ProcessIdentity, end: TlsStream) -> x509.Certificate:
    """Agree with a caller as the listener; return its transport certificate, whose key it has.

    Raises:
        PeerError: it has not, or is gone. Whom the certificate makes it, the roster says.
    """
    certificate = x509.load_der_x509_certificate(await end.agree())
    nonce = await end.read()
    if len(nonce) != NONCE_BYTES:
        raise PeerError("a peer that does not begin with a number of its own")
    await end.write(Challenge(certificate, nonce).answer(identity.certificate, identity.key))
    return certificate
