"""What lies in a key folder, as seen without the passphrase, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.journal import CUT_OFF, left_by_rotation
from securefl_keys.key_files import WAY_OUT, open_to_others, others_may_read, parsed, read
from securefl_keys.kinds import KINDS, LAYOUT, OF_MATCHES, Facts, Kind, kind_at

MAX_ENTRIES = 10_000
"""In a folder: in those of older releases each rotation left two files."""
MAX_BYTES = 64 * 1024 * 1024
UNUSED = (
    "of no use any more: profiles are sealed under one-time keys, as sums are; delete it (the next "
    "securefl keys rotate does)"
)


@dataclass(frozen=True, slots=True)
class Description:
    """One file of a key folder."""

    path: Path
    """Relative to the key folder."""
    what: str
    holder: str
    """The role that may hold such a file."""
    pair: str
    """The key pair that it is of: `cards`, `consortium`, or none where nobody can tell."""
    facts: Facts
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Remarks on a file that is in order, and of no use."""


def describe(directory: Path) -> list[Description]:
    """Every file in a key folder and what is wrong with it; needs no passphrase, changes nothing.

    A role's own machine has its own folder alone, so a missing role is no problem. In a bundle no
    secret is missing, and each that is there is a problem.

    Raises:
        KeyFileError: no key folder, or it cannot be listed.
    """
    try:
        roles = [path for path in {path.parent for path in LAYOUT} if (directory / path).is_dir()]
        if not roles:
            raise KeyFileError(
                f"{directory}: no key folder: it has neither authority/, server/ nor clients/; "
                f"make one with: securefl keys init {directory}"
            )
        found = _found(directory)
    except OSError as error:
        raise KeyFileError(f"{directory}: cannot be listed: {error.strerror or error}") from error
    optional, is_bundle = layout.CONSORTIUM_FILES, layout.MANIFEST in found
    absent = {*optional, layout.OFFICERS} if found.isdisjoint(optional) else {layout.OFFICERS}
    if is_bundle:
        absent.update(layout.KEPT_BY_AUTHORITY)
    absent -= found
    expected = [path for path in LAYOUT if path.parent in roles and path not in absent]
    others = sorted(found - set(expected))
    home = None if is_bundle else layout.AUTHORITY
    files = [_described(directory, path, home) for path in expected + others]
    return _compared(files + [_cut_off(directory, left) for left in left_by_rotation(directory)])


def _cut_off(directory: Path, left: Path) -> Description:
    path = left.relative_to(directory)
    return Description(path, "new keys", "authority", "", Facts(), (CUT_OFF,))


def _found(directory: Path) -> set[Path]:
    left = {path.relative_to(directory).parts[0] for path in left_by_rotation(directory)}
    files: set[Path] = set()
    n_bytes = 0
    # rglob does not enter links to folders, so these are listed themselves.
    for n_entries, entry in enumerate(directory.rglob("*")):
        path = entry.relative_to(directory)
        is_own = path.parts[0] not in left and path.parent != layout.LOG
        if is_own and (entry.is_symlink() or not entry.is_dir()) and not _is_lock(directory, path):
            files.add(path)
            n_bytes += entry.lstat().st_size
        if n_entries > MAX_ENTRIES or n_bytes > MAX_BYTES:
            raise KeyFileError(f"{directory}: more files, or larger ones, than a key folder has")
    return files


def _is_lock(directory: Path, path: Path) -> bool:
    return path.match(".*.lock") and (directory / path).lstat().st_size == 0


def _described(directory: Path, path: Path, home: Path | None) -> Description:
    """Describe a file; secrets may lie in the folder `home`, where there is one."""
    kind, facts = kind_at(path), Facts()
    problems: list[str] = []
    try:
        text = read(directory / path)
        kind = _labelled(text)
        problems += _misplaced(path, kind, home)
        if kind.secret and others_may_read(directory / path):
            problems.append(open_to_others(directory / path))
        facts = parsed(text, kind.facts)
    except KeyFileError as error:
        problems.append(str(error))
    what, holder, pair = (kind.what, kind.holder, kind.pair) if kind else ("unknown", "nobody", "")
    notes = (UNUSED,) if kind in OF_MATCHES and not problems else ()
    return Description(path, what, holder, pair, facts, tuple(problems), notes)


def _labelled(text: str) -> Kind:
    # A damaged file must still show what it was, so its label is searched for, not parsed.
    for kind in KINDS:
        if any(label in text for label in kind.labels):
            return kind
    raise KeyFileError("no SecureFL key file: move it elsewhere")


def _misplaced(path: Path, kind: Kind, home: Path | None) -> list[str]:
    belongs = kind_at(path)
    if kind.secret and (home is None or path.parts[0] != home.name):
        where = f"outside {home}/" if home else "in a bundle"
        gone = f"a secret key {where}: delete it here"
        return [f"{gone}, and if others were given this folder, make new keys"]
    if kind is belongs:
        return []
    if belongs is not None:
        return [f"a {kind.what} file where {belongs.what} belongs; {WAY_OUT}"]
    return [f"a {kind.what} file that nothing reads here: move it elsewhere"]


def _compared(descriptions: list[Description]) -> list[Description]:
    """The same, with a problem added where a key id is not that of the pair's first file."""
    firsts: dict[str, Description] = {}
    for entry in descriptions:
        if entry.pair and entry.facts.key_id is not None:
            firsts.setdefault(entry.pair, entry)
    return [_mixed(entry, firsts.get(entry.pair, entry)) for entry in descriptions]


def _mixed(entry: Description, first: Description) -> Description:
    if entry.facts.key_id in {None, first.facts.key_id}:
        return entry
    mixed = f"of another key than {first.path}: files of two key pairs are mixed"
    return replace(entry, problems=(*entry.problems, f"{mixed}; {WAY_OUT}"))
