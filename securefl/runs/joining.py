"""Joining of sites in mid-study: settings that name more of them than a run began with."""

from collections.abc import Collection

from securefl.errors import ConfigError
from securefl.settings.digests import differing, digests_by_setting
from securefl.settings.tables import Config


def joining(known: Config, config: Config, admitted: Collection[str]) -> list[str]:
    """Return the names that settings have beside those of a run, all of which are admitted.

    Empty where the settings are the run's own.

    Raises:
        ConfigError: they differ in more than names at the end of `data.names`; a new name is not
            among `admitted`, or another is; or such a run cannot take anybody in.
    """
    if known == config:
        if admitted:
            raise ConfigError(
                f"--admit {', '.join(admitted)}: these settings name nobody new beside the run's "
                f"{', '.join(known.data.names):.200}: write the name at the end of data.names"
            )
        return []
    begun, now = known.data.names, config.data.names
    new = list(now[len(begun) :])
    before = {"names": begun, "clients": known.data.clients}
    same = {"data": config.data.model_copy(update=before)}
    alike = config.model_copy(update=same) if now[: len(begun)] == begun else config
    if alike != known:
        of_both = (digests_by_setting(config, exclude=None) for config in (known, alike))
        where = differing(*of_both)
        raise ConfigError(
            f"holds a run of other settings, in {where:.300}: name "
            "another folder, or give the settings that it began with; new sites stand at the end "
            "of data.names"
        )
    options = " ".join(f"--admit {name}" for name in new)
    if unknown := [name for name in admitted if name not in new]:
        raise ConfigError(
            f"--admit {', '.join(unknown)}: the settings name no such new site, but "
            f"{', '.join(new)}: say {options}, or mend the end of data.names"
        )
    if {*new} != {*admitted}:
        raise ConfigError(
            f"these settings name {', '.join(new)}, who was not in the run so far: "
            f"they join it with {options}"
        )
    if config.samples is None:
        raise ConfigError("only sites with their own data ([samples]) join in the middle of a run")
    if config.privacy.of_clients:
        raise ConfigError(
            'privacy.level = "client": ε is of the clients that the run began with: begin another'
        )
    if config.solver.corrected:
        raise ConfigError(
            f"solver.name = {config.solver.name}: its server keeps a mean over the clients that "
            "the run began with: begin another run with all of them"
        )
    return new
