"""Certificates, key folders and processes of a small federation on loopback."""

from __future__ import annotations

import datetime
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from interruptible import SECUREFL

from securefl_keys.folder import init_folder

PASSPHRASE = "a passphrase that only the authority knows"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""As the tests themselves have it: the last bit of torch's sums depends on their number."""
JOB = """
[run]
rounds = 2
[data]
clients = 3
partition = "classes:4"
[algorithm]
name = "{algorithm}"
local_steps = 2
[exchange]
encrypt = "{encrypt}"
"""


def named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class CertificateAuthority:
    """Signs certificates for a test."""

    def __init__(self, name="CA"):
        self._key, self._name = Ed25519PrivateKey.generate(), named(name)
        self.cert = self._sign(self._name, self._key.public_key(), is_ca=True)

    def _sign(self, subject, public_key, *, is_ca=False):
        now = datetime.datetime.now(datetime.UTC)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=is_ca,
                    crl_sign=is_ca,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        return builder.sign(self._key, None)

    def issue(self, folder, name, passphrase=None, stem=None):
        """NAME.pem and NAME.key; the common name is `name`."""
        key, stem = Ed25519PrivateKey.generate(), stem or name
        certificate = self._sign(named(name), key.public_key())
        sealing = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealing)
        (folder / f"{stem}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / f"{stem}.key").write_bytes(pem)
        (folder / f"{stem}.key").chmod(0o600)
        return folder / f"{stem}.pem", folder / f"{stem}.key"

    def write(self, path):
        path.write_bytes(self.cert.public_bytes(Encoding.PEM))


class Process:
    """One `securefl` command, whose stderr goes to a file."""

    def __init__(self, log, *args, env=None):
        self.log = log
        command = [*SECUREFL, *map(str, args)]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, env={**os.environ, **ONE_THREAD, **(env or {})}
            )

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        return self.log.read_text()

    def wait_for(self, pattern, within_s=90.0):
        """The match in what it has said."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.text()):
                return found
            if self.process.poll() is not None and not re.search(pattern, self.text()):
                break
            time.sleep(0.05)
        raise AssertionError(f"never said {pattern!r}:\n{self.text()}")

    def ended(self, within_s=120.0):
        """Its exit code."""
        return self.process.wait(within_s)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return self.ended(20)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@dataclass
class Site:
    """The files of a federation, and the processes that a test has started."""

    folder: Path
    algorithm: str = "fedtan"
    encrypt: str = "statistics"
    n_clients: int = 3
    rounds: int = 2
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self):
        self.folder.mkdir(exist_ok=True)
        self.ca = CertificateAuthority()
        self.ca.write(self.folder / "ca.pem")
        self.roster = self.folder / "roster"
        self.roster.mkdir()
        for name in ("server", "authority"):
            self.ca.issue(self.folder, name)
        for i in range(1, self.n_clients + 1):
            cert, _ = self.ca.issue(self.folder, f"client-{i}")
            (self.roster / cert.name).write_bytes(cert.read_bytes())
        self.job = self.folder / "job.toml"
        self.job.write_text(
            JOB.format(algorithm=self.algorithm, encrypt=self.encrypt)
            .replace("rounds = 2", f"rounds = {self.rounds}")
            .replace("clients = 3", f"clients = {self.n_clients}")
        )
        self.sealed = self.encrypt != "none"
        if self.sealed:
            init_folder(self.folder / "keys", PASSPHRASE)
            (self.folder / "passphrase").write_text(PASSPHRASE + "\n")
            (self.folder / "passphrase").chmod(0o600)

    def identity(self, name):
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        return ["--ca", self.folder / "ca.pem", "--cert", cert, "--key", key]

    def start(self, name, *args, env=None):
        process = Process(self.folder / f"{name}.log", *args, env=env)
        self.processes.append(process)
        return process

    def authority(self, **changes):
        process = self.start(
            "authority",
            *("authority", "serve", self.job, *self.identity("authority")),
            *("--roster", self.roster, "--listen", "127.0.0.1:0"),
            *("--secret", self.folder / "keys/authority/secret.key"),
            *("--passphrase-file", self.folder / "passphrase"),
            *("--out", self.folder / "authority-log"),
        )
        self.authority_at = process.wait_for(r"Listening on (\S+)").group(1)
        return process

    def server(self, *more, name="server"):
        sealing = []
        if self.sealed:
            sealing = ["--authority", self.authority_at]
            sealing += ["--parameters", self.folder / "keys/server/parameters.json"]
        process = self.start(
            "server",
            *("server", "serve", self.job, *self.identity(name), "--roster", self.roster),
            *("--listen", "127.0.0.1:0", "--out", self.folder / "run", *sealing, *more),
        )
        self.server_at = process.wait_for(r"Listening on (\S+)").group(1)
        return process

    def client(self, i, *more, identity=None):
        sealing = []
        if self.sealed:
            sealing = ["--public-key", self.folder / "keys/clients/public.key"]
        return self.start(
            f"client-{i}",
            *("client", "join", self.job, *self.identity(identity or f"client-{i}")),
            *("--server", self.server_at, *sealing, *more),
        )

    def clients(self):
        return [self.client(i) for i in range(1, self.n_clients + 1)]

    def stop(self):
        for process in self.processes:
            process.stop()
