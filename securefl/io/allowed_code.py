"""Names of code that settings may load, since whoever runs this process has said so."""

_ALLOWED: set[str] = set()
"""Names of code that whoever runs this process lets settings load."""


def allow_code(name: str) -> None:
    """Let settings load this code, which runs its module in this process.

    It is `module:Class`, or `module:function` of a metric.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("job.toml").write_text('solver.name = "mine:Mine"')
        >>> securefl.allow_code("mine:Mine")  # you have read mine.py, and know what it runs
        >>> securefl.load_config("job.toml").solver.name
        'mine:Mine'
    """
    _ALLOWED.add(name)


def is_allowed(name: str) -> bool:
    """Return whether settings may load this code."""
    return name in _ALLOWED


def not_allowed(key: str, name: str) -> str:
    """Return words on code that settings name under this key, and may not load."""
    return (
        f'{key} = "{name:.200}" is code of this installation, which the settings would run here: '
        f"look at it, then allow it with securefl --code {name:.200}, in Python with "
        f"securefl.allow_code({name!r:.200})"
    )
