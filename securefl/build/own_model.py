"""A model that each party has as code of its own installation, by the name that the settings give.

Settings come from others, and naming code is running it: each party allows the name in its own
words (site.toml, or `--model`) before anything is imported.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from securefl.errors import ConfigError
from securefl.io.own_code import allowed_function, own_function, sources
from securefl.settings.tables import Config


def is_own(name: str) -> bool:
    """Return whether a `model.name` is `module:function`."""
    return ":" in name


def require_allowed(name: str, allowed: str | None, how: str) -> None:
    """Raise ConfigError unless the party has allowed this code in its own words.

    Args:
        name: `model.name` of the settings.
        allowed: what the party has allowed; None for nothing.
        how: the words in which it can.
    """
    if is_own(name) and name != allowed:
        raise ConfigError(
            f'model.name = "{name}" is code of this installation, which the settings would run '
            f"here: look at it, then allow it with {how}"
        )


def own_model(name: str, shape: tuple[int, ...], n_outputs: int, seed: int) -> nn.Module:
    """Call `module:function` with a sample's shape and the number of outputs.

    Its random numbers are torch's and numbered by `seed`, so that all parties have one model.

    Raises:
        ConfigError: the function cannot be had, or gives no model.
    """
    function, about = _function(name), f'model.name = "{name}"'
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        try:
            model = function(shape, n_outputs)
        except (Exception, SystemExit) as error:  # it may do anything
            raise ConfigError(
                f"{about}: raised a {type(error).__name__}: mend it; it is called with a sample's "
                "shape and a number of outputs"
            ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{about}: gave a {type(model).__name__}, and is to give a torch.nn.Module for "
            "a sample's shape and a number of outputs"
        )
    return model


def code_of(config: Config) -> str:
    """Return the SHA-256, in hex, of the files with the code that the settings name (`sources`).

    Empty where model, metric and choices are SecureFL's.

    Raises as `own_model`.
    """
    name = config.model.name
    named: dict[str, Any] = {name: _function(name)} if is_own(name) else {}
    metric = config.run.metric or ""
    named |= {metric: allowed_function(metric, "run.metric")} if is_own(metric) else {}
    named |= {
        choice.name: type(choice)
        for choice in config.choices
        if not type(choice).__module__.startswith("securefl.")
    }
    files = {m: f for n, code in named.items() for m, f in sources(code, f'"{n}"').items()}
    parts = (
        f"{module} {hashlib.sha256(file.read_bytes()).hexdigest()}\n"
        for module, file in sorted(files.items())
    )
    return hashlib.sha256("".join(parts).encode()).hexdigest() if files else ""


def _function(name: str) -> Callable[..., Any]:
    return own_function(name, f'model.name = "{name}"')
