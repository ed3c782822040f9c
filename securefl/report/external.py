"""Scores of external clients: the result of leave-one-out, as JSON and as a Markdown table."""

import json
from dataclasses import asdict, dataclass

from securefl.io.text import printable
from securefl.metrics.by_name import ACCURACY, accuracy_of, heading, shown
from securefl.settings.tables import Config


@dataclass(frozen=True, slots=True)
class ExternalScore:
    """Scores of a model for one client that had no part in its training."""

    left_out: str
    """Domain that was left out."""
    client: str
    n_samples: int
    score: float
    """Score with the global BN statistics, by the report's metric: accuracies are 0..1."""
    adapted: float
    """Score with statistics re-estimated from the client's own batches."""


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Scores of all folds.

    Examples:
        >>> corruptions = 'data.corruptions=["gaussian_noise", "fog", "contrast", "zoom_blur"]'
        >>> config = securefl.load_config(settings=["run.rounds=1", corruptions])
        >>> report = securefl.leave_one_out(config, "runs/unseen")
        >>> [of.client for of in report.scores]
        ['gaussian_noise', 'fog', 'contrast', 'zoom_blur']
        >>> print(report.to_markdown())
        | Left out | External client | Samples | Accuracy, global statistics | Adapted, τ = 0.9, ...
    """

    config: Config
    adapt_bn: float
    batch_size: int
    scores: tuple[ExternalScore, ...]
    metric: str = ACCURACY
    """Name of the metric of all scores."""
    own_task: bool = False
    """True where the tasks were the user's own, so that `[data]` and `[model]` do not count."""

    @property
    def score(self) -> float:
        """Mean over the external clients, with the global BN statistics."""
        return sum(of.score for of in self.scores) / len(self.scores)

    @property
    def accuracy(self) -> float:
        """Score, 0..1; raises ConfigError where the metric is no accuracy, such as R²."""
        return accuracy_of(self.metric, self.score)

    @property
    def adapted(self) -> float:
        """Mean over the external clients, with adapted statistics."""
        return sum(score.adapted for score in self.scores) / len(self.scores)

    def to_json(self) -> bytes:
        """Return everything as JSON, with the settings of the runs."""
        report = {
            "adapt_bn": self.adapt_bn,
            "batch_size": self.batch_size,
            "metric": self.metric,
            "mean": {"score": self.score, "adapted": self.adapted},
            "clients": [asdict(score) for score in self.scores],
            "settings": self.config.tables(own_task=self.own_task),
        }
        return json.dumps(report, indent=1).encode()

    def to_markdown(self) -> str:
        """Return a table: a row for each external client, and the mean."""
        adapted = f"Adapted, τ = {self.adapt_bn:g}, batches of {self.batch_size}"
        measured = f"{heading(self.metric)}, global statistics"
        columns = ("Left out", "External client", "Samples", measured, adapted)
        rows = [
            (s.left_out, s.client, str(s.n_samples), self._shown(s.score), self._shown(s.adapted))
            for s in self.scores
        ]
        mean = ("mean", "", "", self._shown(self.score), self._shown(self.adapted))
        rule = ("---", "---", "---:", "---:", "---:")
        lines = [" | ".join(map(_cell, cells)) for cells in (columns, rule, *rows, mean)]
        return "".join(f"| {line} |\n" for line in lines)

    def _shown(self, score: float) -> str:
        return shown(self.metric, score)


def _cell(text: str) -> str:
    # A folder's name may hold what Markdown takes for the end of a cell or of a line.
    return printable(" ".join(text.split())).replace("|", "\\|")
