"""Search for a secret in a running process, by whoever may look at all of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from processes import CLIENTS, PASSPHRASE, passphrase_of

from securefl_keys import layout
from securefl_keys.authority_keys import load_authority
from securefl_keys.identity import load_identity, open_ca_key

SEALED = (layout.AUTHORITY_KEY, layout.CA_KEY, layout.AUTHORITY_IDENTITY)
OVERLAP = 64
"""Bytes that two stretches of memory share."""


def secrets_of(site):
    """Return secrets of a site that must not be at its server, as `secrets_under` has them."""
    members = {name: (site.folder / name, passphrase_of(name)) for name in CLIENTS}
    return secrets_under(site.keys, PASSPHRASE, members)


def secrets_under(keys, passphrase, members):
    """Return stretches of bytes that must not be at the server, by what they are.

    They are of secrets, and of the files that a passphrase would open. `members` are folders and
    passphrases by name.
    """
    ca = open_ca_key((keys / layout.CA_KEY).read_text(), passphrase)
    needles = {
        "key of cards": thirds_of(load_authority(keys, passphrase).to_secret_bytes()),
        "CA's seed": [ca.private_bytes_raw()],
        "authority's seed": [seed_of(keys / layout.AUTHORITY, passphrase)],
        "authority's passphrase": [passphrase.encode()],
        "sealed keys": [middle_of((keys / path).read_bytes()) for path in SEALED],
    }
    for name, (folder, own) in members.items():
        needles[f"{name}'s seed"] = [seed_of(folder, own)]
        needles[f"{name}'s passphrase"] = [own.encode()]
        needles[f"{name}'s sealed key"] = [middle_of((folder / "identity.key").read_bytes())]
    return needles


def thirds_of(secret):
    """Return the parts of a card key's secret: both seeds of ML-KEM, and the key of X25519."""
    return [secret[at : at + 32] for at in (0, 32, 64)]


def seed_of(folder, passphrase):
    """Return the seed of an Ed25519 key."""
    return load_identity(folder, passphrase).private_key.private_bytes_raw()


def middle_of(sealed):
    """Return some of a sealed file's ciphertext."""
    return sealed[-60:-20]


def found_in(pid, needles):
    """Return which of these stand in a process's listing, environment, open files, or memory."""
    proc = Path("/proc") / str(pid)
    parts = [(proc / name).read_bytes() for name in ("environ", "cmdline", "maps")]
    for handle in (proc / "fd").iterdir():
        target = handle.readlink()
        parts.append(str(target).encode())
        if target.is_file() and target.stat().st_size < 2**24:
            parts.append(target.read_bytes())
    found, words = found_among(parts, needles), aligned_words(needles)
    for line in (proc / "maps").read_text().splitlines():
        start, end, access = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
        if access[:2] == "rw":
            for stretch in mapped(proc / "mem", int(start, 16), int(end, 16)):
                if has_one(stretch, words):
                    found |= found_among([stretch], needles)
    return found


def aligned_words(needles):
    """Return words of eight bytes of which one is aligned in memory wherever a stretch stands."""
    stretches = [stretch for each in needles.values() for stretch in each]
    assert all(15 <= len(stretch) <= OVERLAP for stretch in stretches)
    return np.array(
        [int.from_bytes(s[at : at + 8], "little") for s in stretches for at in range(8)], "<u8"
    )


def has_one(stretch, words):
    """Return whether one of these words is in it; their first two bytes rule most out."""
    table = np.zeros(2**16, bool)
    table[words & 0xFFFF] = True
    seen = np.frombuffer(stretch, "<u8")
    return bool(np.isin(seen[table[seen.view("<u2")[::4]]], words).any())


def found_under(folders, needles):
    """Return which of these stand in a file of these folders."""
    files = [path.read_bytes() for f in folders for path in f.rglob("*") if path.is_file()]
    assert files
    return found_among(files, needles)


def found_among(parts, needles):
    return {
        name
        for name, stretches in needles.items()
        if any(stretch in part for stretch in stretches for part in parts)
    }


def mapped(path, start, end, size=2**22, overlap=OVERLAP):
    """Yield what lies there, in stretches; what was never written to is left out."""
    nothing = bytes(size)
    with path.open("rb", buffering=0) as file:
        for at in range(start, end, size - overlap):
            file.seek(at)
            try:
                stretch = file.read(min(size, end - at))
            except OSError:  # [vvar] and its like
                return
            if stretch != nothing[: len(stretch)]:
                yield stretch
