"""Parties of a simulation: who seals, who adds, who opens, in the clear or under keys."""

from collections.abc import Mapping
from dataclasses import dataclass

from securefl.build.exchange import policy_of_sums, quorum_of
from securefl.build.job import Job
from securefl.build.selection import profiling_of, score_noise
from securefl.errors import ConfigError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.noise import ScoreNoise
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.one_time_match import OneTimeProfileSealer
from securefl.exchange.policy import Policy
from securefl.exchange.profile_match import PlainMatch, ProfileSealer
from securefl.exchange.sums import Adder, Sealer
from securefl.federation.authority import Authority, CheckingOfficer, ScoreAuthority
from securefl.federation.client import Client, Identities
from securefl.federation.engine import InTheClear, Opener
from securefl.federation.message import Roster
from securefl.federation.officers import Officers, OfficersHere
from securefl.federation.profile_match import MatchChannel, MatchInTheClear, OpenScores, SealedMatch
from securefl.federation.query import Profiling
from securefl.runs.loop import Record
from securefl.settings.tables import Config
from securefl.types import Kind


@dataclass(frozen=True, slots=True)
class Parties:
    """Clients' side of the exchange, and the parts of the server's and the authority's."""

    clients: Mapping[str, Client]
    adders: Mapping[Kind, Adder]
    opener: Opener
    channel: MatchChannel
    """Channel that profiles are matched over."""
    profiling: Profiling
    public: CardKeys | None
    """Public keys of those who open; None where nothing is sealed."""
    least: int
    """Least clients of a round."""


def keys_for(config: Config, given: KeySet | None) -> KeySet | None:
    """Return the keys of a run: those given, ephemeral ones, or none where nothing is sealed.

    Raises:
        ConfigError: those given are of other officers than the settings'.
    """
    if not config.needs_cards:
        return None
    if given is None:
        return KeySet.ephemeral(quorum_of(config))
    if given.quorum != quorum_of(config):
        asked, held = quorum_of(config), given.quorum
        raise ConfigError(
            f"exchange.officers = {asked.officers}, of whom {asked.needed} open sums, and the keys "
            f"that are given are of {held.officers}, of whom {held.needed} do: leave the keys "
            "out, or set exchange.officers and exchange.threshold to theirs"
        )
    return given


def parties_of(job: Job, keys: KeySet | None, identities: Identities, record: Record) -> Parties:
    """Build the parties of a simulation of this job."""
    config = job.config
    sealers: dict[Kind, Sealer] = dict.fromkeys(Kind, job.plain)
    adders: dict[Kind, Adder] = dict.fromkeys(Kind, job.plain)
    opener: Opener = InTheClear()
    profile_sealer: ProfileSealer = PlainMatch()
    noise, profiling, least = score_noise(config), profiling_of(config, job.names), job.needed
    channel: MatchChannel = MatchInTheClear(noise)
    public = keys.public if keys else None
    if keys and public:
        sealers |= dict.fromkeys(job.sealed, OneTimeSealer(public))
        adders |= dict.fromkeys(job.sealed, OneTimeAdder(public))
        policy = policy_of_sums(config, keys.policy, len(job.weights))
        opener = judge = _opener(keys, identities.roster, policy, record)
        if config.exchange.seals_sums:
            least = max(least, policy.min_contributions)
        if config.seals_scores:
            profile_sealer = OneTimeProfileSealer(public)
            channel = SealedMatch(judge, noise, _scores(judge, noise, profiling))
    clients = {
        name: Client(
            name,
            weight,
            sealers,
            job.equal_weight,
            profile_sealer,
            public,
            blind=config.exchange.blind,
            signing_key=identities.keys[name],
        )
        for name, weight in job.weights.items()
    }
    return Parties(clients, adders, opener, channel, profiling, public, least)


def _opener(keys: KeySet, roster: Roster, policy: Policy, record: Record) -> Authority | Officers:
    """Build the authority, or whoever asks officers in its place, each of whom checks for itself.

    The officers' own logs are not kept, as they say what the record says.
    """
    if keys.quorum.officers == 1:
        return Authority(keys.opener(), roster, policy, record.log_opening)
    officers = [
        CheckingOfficer(officer, roster, policy, lambda _opening: None)
        for officer in keys.officers()
    ]
    panel = OfficersHere(officers)
    return Officers(keys.public, panel, record.log_opening, record.incidents.append)


def _scores(
    opener: Authority | Officers, noise: ScoreNoise | None, profiling: Profiling
) -> OpenScores:
    """Return the function that opens scores."""
    if isinstance(opener, Officers):
        return opener.open_scores
    return ScoreAuthority(opener, noise, profiling.draw).open
