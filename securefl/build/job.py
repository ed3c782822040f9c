"""The job of a run, built alike by all its parties: algorithm, local training, weights, checks."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from securefl.algorithms.algorithm import Algorithm
from securefl.algorithms.participation import Aggregation, Participating
from securefl.build.algorithm import algorithm_of, plans
from securefl.build.exchange import check_sealed, least_clients, sealed_kinds
from securefl.build.fnr import check_refinement, config_at, expected_public, fewest_clients
from securefl.build.privacy import require_independent_records, spending, warmed_up
from securefl.build.training import (
    check_precision,
    client_weights,
    equal_weight,
    precision_of,
    training_of,
)
from securefl.data.resident import near
from securefl.data.samples import Samples, samples
from securefl.errors import ConfigError
from securefl.evaluation.evaluator import Evaluator
from securefl.exchange.plain import PlainChannel
from securefl.federation.message import scores_sum
from securefl.federation.server import WeightShares
from securefl.federation.training import Training
from securefl.privacy.odometer import Spending
from securefl.settings.data_set import require_enough
from securefl.settings.tables import Config
from securefl.task import (
    Task,
    client_data,
    client_names,
    configured_task,
    own_settings,
    placed,
    with_metric,
)
from securefl.types import Kind, MessageSpec


@dataclass(frozen=True, slots=True)
class Job:
    """A run's settings as objects, the same at every party; a site uses its own of `data`."""

    config: Config
    task: Task
    data: Mapping[str, Samples]
    """Samples by client, of those whose samples are here, in the order of `names`."""
    public: Samples | None
    algorithm: Algorithm
    training: Training
    weights: Mapping[str, float]
    needed: int
    """Least clients of a round; with fewer it passes without any."""
    public_samples: float
    """Expected number that a client trains on in a round."""
    evaluator: Evaluator
    """Scorer by the run's metric; a site has its own test data in it alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of clients, in the order in which contributions are added."""
        return tuple(self.weights)

    @property
    def equal_weight(self) -> float:
        """Weight of every client where all count alike."""
        return equal_weight(len(self.weights))

    @property
    def sealed(self) -> frozenset[Kind]:
        """Kinds that travel as ciphertext."""
        return sealed_kinds(self.config)

    @property
    def plain(self) -> PlainChannel:
        """Channel of values in the clear."""
        return PlainChannel(precision_of(self.task.model), least_clients(self.config))

    @property
    def scores_at_clients(self) -> bool:
        """True where clients score the model, having layers, models or test data of their own."""
        return bool(self.task.client_tests) or self.config.models_at_clients

    @property
    def score_sums(self) -> tuple[MessageSpec, ...]:
        """Sums after a round between separate processes: the clients' scores, where they are."""
        return (scores_sum(self.evaluator.n_sums),) if self.scores_at_clients else ()

    @property
    def shares(self) -> WeightShares | None:
        """Clients' weights, which the server checks.

        None where clients are drawn with replacement: one counts as often as it is drawn.
        """
        if self.config.selection.repeats:
            return None
        return WeightShares(self.weights, self.equal_weight, told=self.config.samples is None)

    def spending(self) -> Spending | None:
        """Build the accounting of differential privacy; None where no noise is added."""
        if not self.config.privacy.private:
            return None
        return spending(self.config, plans(self.algorithm, self.task.model), self.task.model)


def job_of(config: Config, task: Task | None, here: Collection[str] | None = None) -> Job:
    """Build the job that these settings describe, on their data and model where there is no task.

    Args:
        config: the settings of all parties.
        task: data and model, where the settings do not name them.
        here: clients whose data the task has; None for all. The others' are of the same form.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together.
    """
    if task is not None:
        config = own_settings(config, task)
    elif config.samples is not None:
        raise ConfigError(
            "[samples]: sites bring their own data: give this one's with --data site.toml, or, in "
            "a rehearsal on one machine, each with --site NAME=site.toml"
        )
    task = with_metric(task or configured_task(config), config)
    task = placed(task, config.run.device)
    if here is None or task.public is not None:  # else the server warms up the model, and sends it
        task = warmed_up(config, task)
    data, batch_size = client_data(config, task)
    public = None if task.public is None else samples(task.public, "the public samples")
    data = near(data, task.model)
    training = training_of(config, task.loss, batch_size)
    local = data if here is None else here
    sizes = {name: len(of) if name in local else None for name, of in data.items()}
    weights = client_weights(config, sizes, batch_size)
    algorithm = algorithm_of(config_at(config, task, here), task, training, len(data))
    check_precision(config, task.model)
    config.privacy.require_clients(len(task.clients))
    require_independent_records(config, task, data)
    check_refinement(config, task, algorithm, data, local)
    check_sealed(config, algorithm, task.model)
    require_enough(config, len(data))
    needed = max(fewest_clients(config, algorithm), config.privacy.fewest_shares(config, len(data)))
    public_samples = expected_public(algorithm)
    aggregation = Aggregation.FULL if config.selection.counts_all else Aggregation.PARTIAL
    everyone = None if config.samples else sum(weights.values())
    algorithm = Participating(algorithm, len(data), everyone, aggregation)
    algorithm = config.privacy.around(config, algorithm, task.model, len(data))
    data = {name: of for name, of in data.items() if name in local}
    evaluator = Evaluator(task, client_names(config, task))
    found = config, task, data, public, algorithm, training, weights, needed, public_samples
    return Job(*found, evaluator)


def planned_spending(config: Config, task: Task) -> Callable[[float], Spending]:
    """Return the accounting of a run as a function of its `privacy.sigma`.

    Checks that do not depend on σ run once, before this returns: they take seconds.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together, or the run
            adds no noise.
    """
    if not config.privacy.private:
        raise ConfigError(
            'privacy.level = "none": nothing is noisy, so ε is infinite; set privacy.level = '
            '"record" or "client"'
        )
    data, batch_size = client_data(config, task)
    check_precision(config, task.model)
    config.privacy.require_clients(len(task.clients))
    require_independent_records(config, task, data)
    training = training_of(config, task.loss, batch_size)
    plan_of = plans(algorithm_of(config, task, training, len(data)), task.model)
    return lambda sigma: spending(config.with_sigma(sigma), plan_of, task.model)
