"""`securefl evaluate`: a finished run's model on data that did not train it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl_cli.own_data import Own, allowed_model_option, sites_option
from securefl_cli.scores import (
    ScoreRow,
    batch_size_option,
    note_untrained_statistics,
    print_scores,
)

if TYPE_CHECKING:
    from securefl.data.samples import ClientData
    from securefl.evaluation.named_data import Trained


@click.command("evaluate")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "names",
    multiple=True,
    metavar="DATA",
    help="What to evaluate on, see below; may be given several times.  [default: test, or with "
    "--site the sites' test samples]",
)
@click.option(
    "--adapt-bn",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="TAU",
    help="Also with BN statistics re-estimated from the data; the weight of the old ones, 0.9.",
)
@batch_size_option
@sites_option(
    "A site of a run whose sites have their own data, and its file here: its own test samples. "
    "May be given several times."
)
@allowed_model_option
def evaluate_run(
    run_folder: Path,
    names: tuple[str, ...],
    adapt_bn: float | None,
    batch_size: int,
    sites: tuple[str, ...],
    model: str | None,
) -> None:
    """Score a finished run's model, with the global BN statistics and with adapted ones.

    \b
    DATA is one of
      test                       the run's own test data
      test:CORRUPTION:SEVERITY   the same corrupted, severity 1 to 5
      external, external:NAME    clients that the run left out (data.leave_out)
      FILE.npz, .safetensors     arrays x (samples) and y (labels)
      FOLDER                     pictures, a folder for each class

    \b
    Example:
      securefl evaluate runs/first --data test --data test:fog:3 --adapt-bn 0.9
      securefl evaluate runs/first --data external --adapt-bn 0.9
      securefl evaluate runs/first --data hospital-9.npz --adapt-bn 0.9 --batch-size 64
      securefl evaluate runs/first --site north=north/site.toml
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.evaluation.named_data import load_trained
    from securefl.evaluation.unseen import unseen_data
    from securefl.runs.folder_reader import read_config

    own = Own(sites, model)
    here = own.task_here(read_config(run_folder)) if sites else None
    trained = load_trained(run_folder, here)
    given = [unseen_data(name, trained.config, trained.task) for name in names]
    if here:
        tests = dict(zip(here.names, here.client_tests, strict=True))
        given.append({name: tests[name] for name in own.files() if name in tests})
    elif not names:
        given.append(unseen_data("test", trained.config, trained.task))
    rows = [
        _row(label, trained, data, adapt_bn, batch_size)
        for found in given
        for label, data in found.items()
    ]
    print_scores(["Data"], rows, adapt_bn)
    note_untrained_statistics(trained.config)


def _row(
    label: str, trained: Trained, data: ClientData, adapt_bn: float | None, batch_size: int
) -> ScoreRow:
    from securefl.data.samples import samples
    from securefl.evaluation.named_data import evaluate

    n_samples = len(samples(data, label))  # first, since it names what it refuses
    score = partial(evaluate, trained.model, data, batch_size=batch_size, loss=trained.task.loss)
    found = score()
    adapted = None
    if adapt_bn is not None:
        adapted = score(adapt_bn=adapt_bn).value
    return ScoreRow([label], n_samples, found.value, adapted, found.metric)
