"""SecureFL: federated learning whose statistics travel encrypted.

    import securefl
    result = securefl.run(securefl.Config(), securefl.Task(model, clients, test))

What stands here is loaded when it is first used, so that `import securefl` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from securefl.algorithms.servers.server_optimiser import ServerOptimiser as ServerOptimiser
    from securefl.algorithms.solvers.solver import Solver as Solver
    from securefl.audit.audits import audit_run as audit_run
    from securefl.build.own_data import task_of_sites as task_of_sites
    from securefl.build.run import resume as resume
    from securefl.build.run import run as run
    from securefl.errors import SecureFLError as SecureFLError
    from securefl.evaluation.evaluate import Trained as Trained
    from securefl.evaluation.evaluate import evaluate as evaluate
    from securefl.evaluation.evaluate import load_trained as load_trained
    from securefl.evaluation.leave_one_out import leave_one_out as leave_one_out
    from securefl.evaluation.own_part import own_part as own_part
    from securefl.export.model_file import export_model as export_model
    from securefl.io.allowed_code import allow_code as allow_code
    from securefl.losses.cox import cox_loss as cox_loss
    from securefl.losses.dice import dice_loss as dice_loss
    from securefl.norms.convert import convert_norm as convert_norm
    from securefl.report.external import LeaveOneOut as LeaveOneOut
    from securefl.runs.loop import Result as Result
    from securefl.selection.selector import Selector as Selector
    from securefl.settings.axes import Normalisation as Normalisation
    from securefl.settings.load import load_config as load_config
    from securefl.settings.tables import Config as Config
    from securefl.task import Task as Task

_HOMES = {
    "Config": "securefl.settings.tables",
    "LeaveOneOut": "securefl.report.external",
    "Normalisation": "securefl.settings.axes",
    "Result": "securefl.runs.loop",
    "SecureFLError": "securefl.errors",
    "Selector": "securefl.selection.selector",
    "ServerOptimiser": "securefl.algorithms.servers.server_optimiser",
    "Solver": "securefl.algorithms.solvers.solver",
    "Task": "securefl.task",
    "allow_code": "securefl.io.allowed_code",
    "audit_run": "securefl.audit.audits",
    "cox_loss": "securefl.losses.cox",
    "convert_norm": "securefl.norms.convert",
    "Trained": "securefl.evaluation.evaluate",
    "dice_loss": "securefl.losses.dice",
    "evaluate": "securefl.evaluation.evaluate",
    "export_model": "securefl.export.model_file",
    "leave_one_out": "securefl.evaluation.leave_one_out",
    "load_config": "securefl.settings.load",
    "load_trained": "securefl.evaluation.evaluate",
    "own_part": "securefl.evaluation.own_part",
    "resume": "securefl.build.run",
    "run": "securefl.build.run",
    "task_of_sites": "securefl.build.own_data",
}
__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return sorted({"__version__", *(name for name in globals() if name.startswith("__")), *_HOMES})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("securefl")
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
