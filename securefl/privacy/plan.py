"""Plan of a run of DP-SGD at its clients, from public numbers before it starts."""

from dataclasses import dataclass, fields
from typing import final

from securefl.errors import ConfigError
from securefl.privacy.calibration import sigma_for
from securefl.privacy.events import MAX_STEPS, SampledGaussian


@final
@dataclass(frozen=True, slots=True)
class RecordPlan:
    """Public numbers that say how often a record is sampled: none may be read off the data.

    Raises ConfigError where a number is out of range or does not go with another.
    """

    records: int
    """Number of records that the clients hold together at least, in equal parts."""
    batch: int
    """Expected size B of a Poisson sample; its real size varies."""
    rounds: int
    local_steps: int
    """Number E of noisy steps of each client in a round."""
    clients: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{field.name} = {value}: must be a whole number of at least 1")
        if self.batch >= self.records_each:
            raise ConfigError(
                f"batch = {self.batch}: must be below the {self.records_each} records that a "
                "client holds, so that a sample leaves some out; have a smaller batch"
            )
        if self.steps > MAX_STEPS:
            raise ConfigError(
                f"rounds · local steps = {self.steps:,}: must be at most {MAX_STEPS:,}"
            )

    @property
    def records_each(self) -> int:
        """Number of records that a client holds at least."""
        return self.records // self.clients

    @property
    def sample_rate(self) -> float:
        """Probability q = B / records of a client, with which a record is in a step's sample."""
        return self.batch / self.records_each

    @property
    def steps(self) -> int:
        """Number of noisy sums that each record may be in."""
        return self.rounds * self.local_steps

    def event(self, noise_multiplier: float) -> SampledGaussian:
        """Return all the run's releases about one client's records.

        A record is in the data of one client alone, so what the others release costs it nothing
        (McSherry, Privacy Integrated Queries, SIGMOD 2009, Theorem 4).
        """
        return SampledGaussian(noise_multiplier, self.sample_rate, self.steps)

    def sigma_for(self, target_epsilon: float, delta: float) -> float:
        """Return the smallest noise multiplier that keeps to this ε by PLD; see `calibration`."""
        self.check_delta(delta)
        return sigma_for(target_epsilon, delta, lambda sigma: [self.event(sigma)])

    def check_delta(self, delta: float) -> None:
        """Raises ConfigError where δ would allow to publish a record whole, now and then."""
        if delta >= 1 / self.records:
            raise ConfigError(
                f"delta = {delta:g}: must be below 1 / records = {1 / self.records:.2g}, since to "
                f"publish one record at random would satisfy it; {0.1 / self.records:.0e} suits"
            )
