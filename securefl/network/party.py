"""Part of a client in a job: its own data, its sealing and signing, and its site in a session."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from securefl.algorithms.scoring import Score
from securefl.build.job import Job
from securefl.build.own_data import site_job
from securefl.build.selection import most_times, numbers_of, profiling_of
from securefl.data.site_file import read_site
from securefl.errors import ConfigError, PeerError
from securefl.exchange.blind import n_client_bytes
from securefl.exchange.layout import hollow
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.one_time_match import OneTimeProfileSealer
from securefl.exchange.profile_match import PlainMatch
from securefl.exchange.sums import Sealer
from securefl.federation.client import Client
from securefl.federation.message import CARD
from securefl.federation.query import Respondent
from securefl.federation.site import Site
from securefl.federation.total import RELEASED, n_total_bytes, state_digest
from securefl.network import bodies
from securefl.network.approval import APPROVED, ApprovedJob
from securefl.network.flat_layers import require_varied, varied
from securefl.network.frames import SMALL, Frame
from securefl.network.identity import ProcessIdentity
from securefl.network.models_shown import ModelsShown
from securefl.network.sealed_for import SealedFor
from securefl.network.settings import check_scope
from securefl.network.store import FileStore
from securefl.network.trust import TrustedBundle
from securefl.runs.task_record import SiteRecord
from securefl.settings.digests import study_digest
from securefl.settings.tables import Config
from securefl.simulation.clients import Clients
from securefl.simulation.sequential import Sequential
from securefl.types import Floats, Kind, MessageSpec, Plan, State

GONE = {Frame.LEAVE: SMALL, Frame.GOODBYE: SMALL}
"""Frames that the server may always send instead, and the bytes that fit."""


@dataclass(slots=True)
class PartySession:
    """Part of a client in one session of a run."""

    party: "ClientParty"
    run: str
    """Id of the session."""
    job: str
    """Id of the job, the same in all of its sessions."""
    site: Site
    respondent: Respondent
    store: FileStore
    models: ModelsShown
    like: State
    """State with the names, shapes and types of all others."""
    varied: frozenset[str]
    """Layers that no training makes flat: see `flat_layers.varied`."""
    state: State | None = None
    """State that the server has sent last."""
    due: MessageSpec | None = None
    """Sum whose total is waited for."""
    round: int = 0
    """Last round that it takes part in."""
    asked: int = 0
    """Last round that it is asked for anything of."""
    said: Score | None = None
    """Score of the client's own that its log has last."""

    def frames(self) -> dict[Frame, int]:
        """Return what the server may say next, and how long it may be."""
        if self.due:  # nothing else, before it ends the round or this client's part in it
            return {Frame.TOTAL: self.party.most_total_bytes(self.due), **GONE}
        size = bodies.max_state_bytes(self.like)
        earlier = bodies.n_shown_bytes(self.party.job.config.run.rounds)
        return {
            Frame.ROUND: size + earlier,
            Frame.QUESTION: size,
            Frame.BUNDLE: bodies.MAX_BUNDLE,
            Frame.COUNTED: 0,
            **GONE,
        }

    def take_state(self, body: bytes, round_number: int, *, whole: bool) -> State:
        """Take up the tensors that come with a request.

        Raises:
            PeerError: they do not fit.
            ModelRefused: the model is plainly crafted.
        """
        known = None if whole else self.state
        if known is None and not whole:
            raise PeerError("the server sends a part of a model that this client has nothing of")
        self.state = state = bodies.read_state(body, self.like, known, round_number - 1)
        require_varied(self.party.name, state, self.varied)
        return state


@dataclass
class ClientParty:
    """One client of a job."""

    job: Job
    identity: ProcessIdentity
    folder: Path
    """Folder of its own, with the tensors that it keeps between rounds."""
    sealers: dict[Kind, Sealer] = field(init=False)
    client: Client = field(init=False)
    officers: Sequence[str] = ()
    """Names of those who open what it seals."""
    sealed_for: SealedFor = field(init=False)

    def __post_init__(self) -> None:
        job, own = self.job, self.identity
        if own.name not in job.weights:
            raise ConfigError(
                f"{own.name!r:.100} is no client of these settings, which name "
                f"{', '.join(job.names):.200}: name them as their certificates do, with data.names"
            )
        self.sealers = dict.fromkeys(Kind, job.plain)
        weight, equal = job.weights[own.name], job.equal_weight
        blind = job.config.exchange.blind
        self.client = Client(
            own.name, weight, self.sealers, equal, blind=blind, signing_key=own.key
        )
        self.sealed_for = SealedFor(self.folder, study_digest(job.config))
        # Torch loads a third of itself with the first of these: not while the first round waits.
        torch.optim.SGD(job.task.model.parameters(), lr=0.0)

    @property
    def name(self) -> str:
        """Name in its certificate."""
        return self.identity.name

    @property
    def most_times(self) -> int:
        """Number of times that the client may count in a round."""
        return most_times(self.job.config, len(self.job.names))

    @property
    def questions(self) -> frozenset[str]:
        """Names of the messages that the client may be asked for beside its training."""
        sums = (spec.name for spec in self.job.score_sums)
        cards = [CARD] if self.job.config.needs_cards else []
        return frozenset((*numbers_of(self.job), *sums, *cards))

    @property
    def precision(self) -> Floats:
        """Floats of totals that travel."""
        return self.job.plain.dtype

    def takes_blind(self, spec: MessageSpec) -> bool:
        """Return True where the client takes this total in mid-round as sealed for it alone."""
        return self.client.blind and spec.kind in self.job.sealed

    def most_total_bytes(self, spec: MessageSpec) -> int:
        """Return the largest length in bytes of a total in mid-round."""
        if self.takes_blind(spec):
            return n_client_bytes(self.job.names, n_total_bytes(spec.n_values, RELEASED))
        return n_total_bytes(spec.n_values, self.precision)

    def plan(self, state: State) -> Plan:
        """Return what is sent in the round after a state."""
        return self.job.algorithm.plan(state, self.job.task.model)

    def seal_with(self, bundle: TrustedBundle) -> None:
        """Take up the keys of an epoch."""
        keys, client = bundle.card_keys, self.client
        self.sealers |= dict.fromkeys(self.job.sealed, OneTimeSealer(keys))
        sealed = self.job.config.seals_scores
        client.profile_sealer = OneTimeProfileSealer(keys) if sealed else PlainMatch()
        client.card_keys = keys
        self.officers = bundle.officers()

    def require_record(self, what: str, round_number: int, model: str) -> None:
        """Require that whoever opens has the record of all that was opened at this model.

        `model` is the digest of the state that the server has sent.

        Raises:
            ConfigError, RunFolderError: as `SealedFor.require`.
        """
        if self.job.config.needs_cards:
            self.sealed_for.require(self.officers, what, round_number, model)

    def session(self, run: str, job_id: str) -> PartySession:
        """Begin a session of a run.

        Two sessions draw other mini-batches, which nobody else can tell, so that a round that is
        repeated without one client does not show that client's update; with `run.reproducible`
        they are a simulation's.
        """
        job, name = self.job, self.name
        table, training, model = job.config.run, job.training, job.task.model
        seed = table.seed if table.reproducible else self.client.draws(run, table.seed)
        number, own = list(job.names).index(name), {name: job.data[name]}
        trained = Clients(job.algorithm, model, own, replace(training, seed=seed), {name: number})
        clients, first = {name: self.client}, job.algorithm.init(model)
        like = _hollow(first)
        respondent = Respondent(
            clients,
            own,
            model,
            job.task.loss,
            profiling_of(job.config, job.names),
            job.evaluator.score_of,
            *job.score_sums,
        )
        checked = job.task.algorithm is None  # what another keeps, it alone knows
        store = FileStore(self.folder, name, job_id, run, model, checked, like)
        if job.config.samples:
            x, y = own[name].take(torch.arange(len(own[name])))
            store.require_data(state_digest(State(0, {Kind.PARAMETERS: {"x": x, "y": y}})))
            store.note_data(SiteRecord.of((x, y), job.task.client_tests[number]))
        site = Site(clients, Sequential(trained), respondent, self.plan, self.precision, store)
        shown = ModelsShown(self.folder, name, job_id)
        return PartySession(self, run, job_id, site, respondent, store, shown, like, varied(first))


def _hollow(state: State) -> State:
    """Return a state of the same names, shapes and types, which takes no memory."""
    tensors = {
        kind: {n: hollow(value.shape, value.dtype, value.device) for n, value in named.items()}
        for kind, named in state.tensors.items()
    }
    return State(state.round, tensors)


def client_party(
    config: Config,
    identity: ProcessIdentity,
    folder: Path,
    data: Path | None = None,
    approved: Path | None = None,
) -> ClientParty:
    """Build the part of the client of that identity.

    Args:
        config: the settings of all parties.
        identity: the client's.
        folder: its own, for what it keeps between rounds.
        data: its site.toml, if it has one.
        approved: its approval of the job, where one is required; site.toml may require the one
            beside it.

    Raises:
        ConfigError: there is no such client, the settings do not fit, or are not approved.
        DataError: its data cannot be used.
    """
    check_scope(config)
    if approved is None and data and read_site(data).approval:
        approved = data.parent / APPROVED
    if approved is None:
        return ClientParty(site_job(config, identity.name, data), identity, folder)
    approval = ApprovedJob(approved, identity)
    approval.require_settings(config)
    party = ClientParty(site_job(config, identity.name, data), identity, folder)
    approval.require_job(party.job)
    return party
