"""The key folder: one directory per role, each with exactly the key material that the role needs.

DIR/authority/secret.key       sealed with the passphrase, mode 0600
DIR/authority/parameters.json
DIR/server/parameters.json     no key at all
DIR/clients/public.key
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import (
    PARAMETERS_FORMAT,
    PUBLIC_KEY_FORMAT,
    AddingContext,
    PublicKey,
)
from securefl.crypto.secret import KeySet, SecretKey
from securefl.errors import ConfigError, KeyFileError, WrongPassphrase
from securefl_keys import sealed_file
from securefl_keys.sealed_file import SealedFile, open_secret, seal_secret

MAX_FILE_BYTES = 4 * 1024 * 1024
WAY_OUT = "copy it again from where the keys were made, or make new ones with: securefl keys init"

_Parsed = TypeVar("_Parsed")
_Public = AddingContext | PublicKey


@dataclass(frozen=True, slots=True)
class Description:
    """One file of a key folder, as seen without the passphrase."""

    path: Path
    """Relative to the key folder."""
    what: str
    holder: str
    """The role that may hold such a file."""
    key_id: str | None
    security_bits: int | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    format: str
    what: str
    holder: str
    parse: Callable[[str], SealedFile | AddingContext | PublicKey]


_SECRET = _Kind(sealed_file.FORMAT, "secret key", "authority", SealedFile.parse)
_PARAMETERS = _Kind(PARAMETERS_FORMAT, "parameters", "any role", AddingContext.from_json)
_PUBLIC = _Kind(PUBLIC_KEY_FORMAT, "public key", "clients", PublicKey.from_json)

AUTHORITY_KEY = Path("authority/secret.key")
AUTHORITY_PARAMETERS = Path("authority/parameters.json")
SERVER_PARAMETERS = Path("server/parameters.json")
CLIENT_KEY = Path("clients/public.key")
_LAYOUT = {
    AUTHORITY_KEY: _SECRET,
    AUTHORITY_PARAMETERS: _PARAMETERS,
    SERVER_PARAMETERS: _PARAMETERS,
    CLIENT_KEY: _PUBLIC,
}


def init_folder(directory: Path, passphrase: str, parameters: CkksParameters = SUMS) -> PublicKey:
    """Make a CKKS key pair and the folder that holds it; returns its public half.

    The folder appears whole or not at all.

    Raises:
        ConfigError: the passphrase is empty.
        KeyFileError: `directory` exists, or cannot be written.
    """
    if os.path.lexists(directory):
        raise KeyFileError(
            f"{directory} exists: keys are never overwritten; name another folder, or move it away"
        )
    key = SecretKey.generate(parameters)
    sealed, adding = seal_secret(key, passphrase), key.adding_context().to_json()
    try:
        with _appearing_whole(directory) as building:
            (building / "authority").mkdir(mode=0o700)
            (building / "server").mkdir()
            (building / "clients").mkdir()
            _write(building / AUTHORITY_KEY, sealed, mode=0o600)
            _write(building / AUTHORITY_PARAMETERS, adding, mode=0o644)
            _write(building / SERVER_PARAMETERS, adding, mode=0o644)
            _write(building / CLIENT_KEY, key.public_key.to_json(), mode=0o644)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: cannot make the key folder: {error.strerror or error}; "
            "nothing of it was left: name a folder on a disk that you can write"
        ) from error
    return key.public_key


def load_client(directory: Path) -> PublicKey:
    """What a client holds; raises KeyFileError."""
    return _load(directory / CLIENT_KEY, PublicKey.from_json)


def load_server(directory: Path) -> AddingContext:
    """What the server holds; raises KeyFileError."""
    return _load(directory / SERVER_PARAMETERS, AddingContext.from_json)


def load_authority(directory: Path, passphrase: str) -> SecretKey:
    """What the authority holds.

    Raises:
        WrongPassphrase: another passphrase, or the file was changed.
        KeyFileError: missing, damaged, or readable by other users.
    """
    path = directory / AUTHORITY_KEY
    if _others_may_read(path):
        raise KeyFileError(f"{path}: other users may read it; close it with: chmod 600 {path}")
    return _load(path, lambda text: open_secret(text, passphrase))


def load_all(directory: Path, passphrase: str) -> KeySet:
    """What the three roles hold, checked to be of one pair.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    public, adding = load_client(directory), load_server(directory)
    secret = load_authority(directory, passphrase)
    _require_same(directory / CLIENT_KEY, public, secret.public_key)
    _require_same(directory / SERVER_PARAMETERS, adding, secret.adding_context())
    return KeySet(secret, public, adding)


def _require_same(path: Path, found: _Public, ours: _Public) -> None:
    if found.key_id != ours.key_id:
        raise KeyFileError(
            f"{path}: of key {found.key_id[:16]}…, but the authority holds "
            f"{ours.key_id[:16]}…; {WAY_OUT}"
        )
    if found.to_json() != ours.to_json():
        raise KeyFileError(f"{path}: changed since the keys were made; {WAY_OUT}")


def describe(directory: Path) -> list[Description]:
    """Every file in a key folder and what is wrong with it; needs no passphrase.

    A role's own machine has its own folder alone, so a missing role is no problem.

    Raises:
        KeyFileError: no key folder, or it cannot be listed.
    """
    try:
        roles = [path for path in {path.parent for path in _LAYOUT} if (directory / path).is_dir()]
        if not roles:
            raise KeyFileError(
                f"{directory}: no key folder: it has neither authority/, server/ nor clients/; "
                f"make one with: securefl keys init {directory}"
            )
        # rglob does not enter links to folders, so these are listed themselves.
        found = {
            path.relative_to(directory)
            for path in directory.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
    except OSError as error:
        raise KeyFileError(f"{directory}: cannot be listed: {error.strerror or error}") from error
    expected = [path for path in _LAYOUT if path.parent in roles]
    others = sorted(found - set(expected))
    return _compared([_described(directory, path) for path in expected + others])


def _described(directory: Path, path: Path) -> Description:
    kind, key_id, security_bits = _LAYOUT.get(path), None, None
    problems: list[str] = []
    try:
        text = _read(directory / path)
        kind = _labelled(text)
        problems += _misplaced(path, kind)
        if kind is _SECRET and _others_may_read(directory / path):
            problems.append(f"other users may read it; close it with: chmod 600 {directory / path}")
        holds = _parsed(text, kind.parse)
        key_id, security_bits = holds.key_id, holds.parameters.security_bits
    except KeyFileError as error:
        problems.append(str(error))
    what, holder = (kind.what, kind.holder) if kind else ("unknown", "nobody")
    return Description(path, what, holder, key_id, security_bits, tuple(problems))


def _labelled(text: str) -> _Kind:
    # A damaged file must still show what it was, so its label is searched for, not parsed.
    for kind in (_SECRET, _PUBLIC, _PARAMETERS):
        if kind.format in text:
            return kind
    raise KeyFileError("no SecureFL key file: move it elsewhere")


def _misplaced(path: Path, kind: _Kind) -> list[str]:
    belongs = _LAYOUT.get(path)
    if kind is belongs:
        return []
    if kind is _SECRET and path.parts[0] != "authority":
        gone = "a secret key outside authority/: delete it here"
        return [f"{gone}, and if others were given this folder, make new keys"]
    if belongs is not None:
        return [f"a {kind.what} file where {belongs.what} belongs; {WAY_OUT}"]
    return [f"a {kind.what} file that nothing reads here: move it elsewhere"]


def _compared(descriptions: list[Description]) -> list[Description]:
    """The same, with a problem added where a key id is not that of the first file that has one."""
    first = next((entry for entry in descriptions if entry.key_id is not None), None)
    if first is None:
        return descriptions
    mixed = f"of another key than {first.path}: files of two key pairs are mixed; {WAY_OUT}"
    return [
        entry
        if entry.key_id in {None, first.key_id}
        else replace(entry, problems=(*entry.problems, mixed))
        for entry in descriptions
    ]


@contextmanager
def _appearing_whole(directory: Path) -> Iterator[Path]:
    """A sibling to write in, which at the end becomes `directory`, or on any error vanishes."""
    made_parents = [parent for parent in directory.parents if not parent.exists()]
    building = directory.parent / f".{directory.name}.{secrets.token_hex(8)}"
    try:
        building.mkdir(parents=True)
        yield building
        building.rename(directory)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        for parent in made_parents:
            with suppress(OSError):
                parent.rmdir()
        raise


def _write(path: Path, text: str, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(handle)


def _load(path: Path, parse: Callable[[str], _Parsed]) -> _Parsed:
    try:
        return _parsed(_read(path), parse)
    except (ConfigError, WrongPassphrase) as error:
        raise type(error)(f"{path}: {error}") from error
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}; {WAY_OUT}") from error


def _parsed(text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    try:
        return parse(text)
    except (ConfigError, KeyFileError):
        raise
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"damaged: TenSEAL does not read it: {error}") from error


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise KeyFileError("missing, or not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise KeyFileError(f"larger than the {MAX_FILE_BYTES} bytes that a key file may have")
        return data.decode()
    except OSError as error:
        raise KeyFileError(f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError("not a text file, so not a SecureFL key file") from error


def _others_may_read(path: Path) -> bool:
    # Windows has no such bits and shows every file as open to all.
    try:
        return os.name == "posix" and bool(path.stat().st_mode & 0o077)
    except OSError:
        return False
