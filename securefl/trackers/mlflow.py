"""MLflow: a run's settings as parameters, its rounds as metrics."""

import math
import os
import re
import time

from securefl.errors import ConfigError
from securefl.runs.frame import row
from securefl.runs.loop import Result
from securefl.runs.round_metrics import RoundMetrics
from securefl.settings.load import flat
from securefl.settings.tables import Config
from securefl.trackers.tracker import require_package

EXPERIMENT = "securefl"
_MOST_PARAMETERS = 100  # of one request
_MOST_CHARACTERS = 6000  # of a parameter
_NO_NAME = re.compile(r"[^\w\-. /]")  # characters that no metric's name has


class MLflow:
    """`Tracker` that writes into a run of MLflow; the caller's own active run stays as it is."""

    def __init__(
        self, config: Config, uri: str | None = None, experiment: str = EXPERIMENT
    ) -> None:
        """Begin a run of MLflow.

        Args:
            config: the run's settings.
            uri: of the tracking server or its store; MLflow's own setting where None.
            experiment: its name; it is made where there is none.

        Raises:
            ConfigError: MLflow is not installed, or does not answer there.
        """
        require_package("mlflow", "mlflow")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it reports to its makers else
        from mlflow import MlflowClient  # noqa: PLC0415  (an extra)
        from mlflow.entities import Param  # noqa: PLC0415
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        settings = [Param(key, value[:_MOST_CHARACTERS]) for key, value in flat(config.tables())]
        try:
            self._client = MlflowClient(uri)
            known = self._client.get_experiment_by_name(experiment)
            number = known.experiment_id if known else self._client.create_experiment(experiment)
            self._run = self._client.create_run(number, run_name=config.name).info.run_id
            for at in range(0, len(settings), _MOST_PARAMETERS):
                self._client.log_batch(self._run, params=settings[at : at + _MOST_PARAMETERS])
        except MlflowException as error:
            raise ConfigError(f"MLflow at {uri or 'its own setting'}: {error}") from error

    def on_round(self, metrics: RoundMetrics) -> None:
        """Write a round: see `Tracker.on_round`; MLflow takes no number that is not finite."""
        from mlflow.entities import Metric  # noqa: PLC0415

        now = int(time.time() * 1000)
        found = [
            Metric(_NO_NAME.sub("_", name), value, now, metrics.round)
            for name, value in row(metrics).items()
            if math.isfinite(value)
        ]
        self._client.log_batch(self._run, metrics=found)

    def on_end(self, result: Result) -> None:
        """End: see `Tracker.on_end`."""
        self.end(failed=bool(result.stopped))

    def end(self, *, failed: bool) -> None:
        """End: see `Tracker.end`."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")
