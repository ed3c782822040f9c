"""TensorBoard: a run's rounds as event files."""

from pathlib import Path

from securefl.runs.frame import row
from securefl.runs.loop import Result
from securefl.runs.round_metrics import RoundMetrics
from securefl.settings.load import flat
from securefl.settings.tables import Config
from securefl.trackers.tracker import require_package


class TensorBoard:
    """`Tracker` that writes scalars by round, and the settings as text, into a folder."""

    def __init__(self, config: Config, folder: Path | str) -> None:
        """Begin event files; a run that is resumed goes on in the same folder.

        Args:
            config: the run's settings.
            folder: for `tensorboard --logdir`.

        Raises:
            ConfigError: TensorBoard is not installed.
        """
        require_package("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an extra)

        self._writer = SummaryWriter(str(folder))
        lines = (f"    {key} = {value}" for key, value in flat(config.tables()))
        self._writer.add_text("settings", "\n".join(lines))

    def on_round(self, metrics: RoundMetrics) -> None:
        """Write a round: see `Tracker.on_round`."""
        for name, value in row(metrics).items():
            self._writer.add_scalar(name, value, metrics.round)
        self._writer.flush()

    def on_end(self, result: Result) -> None:
        """End: see `Tracker.on_end`."""
        self.end(failed=bool(result.stopped))

    def end(self, *, failed: bool) -> None:
        """End: see `Tracker.end`; TensorBoard has no word for failure."""
        del failed
        self._writer.close()
