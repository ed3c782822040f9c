"""A stranger's solver, normalisation, server optimiser and selector, in a module of their own."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from itertools import count
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import securefl
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.build.job import job_of
from securefl.build.own_choices import OwnPolicy, OwnServer, OwnSolver
from securefl.build.own_model import code_of
from securefl.errors import ConfigError
from securefl.io import allowed_code
from securefl.io.own_code import sources
from securefl.privacy.events import WithoutPrivacy
from securefl.runs.folder_reader import read_config
from securefl.settings import choice
from securefl.settings.axes import DrawnSelector, FnrChoice, SolverChoice
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick")

SOLVER = '''
"""FedProx, as its paper has it."""
from dataclasses import dataclass

import torch

import securefl
from securefl.algorithms.solvers.solver import End, trained


class Proximal(securefl.Solver):
    mu: float = 0.01
    elementwise = True

    def begin(self, start):
        return Round(start, self.mu)


@dataclass
class Round:
    start: object
    mu: float

    def gradients(self, around):
        self.start.backward(around)
        moved = self.start.moved()
        for name, gradient in self.start.gradients():
            gradient.add_(moved[name], alpha=self.mu)

    def end(self):
        return End(trained(self.start), {}, {})
'''
NORMALISATION = '''
import securefl
from securefl.algorithms.normalisation.policy import RoundNorm
from securefl.norms.find import batch_norm_layers


class LastLayerLocal(securefl.Normalisation):
    """Each client keeps its last BN layer."""

    def build(self, rounds):
        return local


def local(state, model):
    *_, last = batch_norm_layers(model)
    names = [n for n, _ in model.named_parameters()] + [n for n, _ in model.named_buffers()]
    return RoundNorm(local=frozenset(n for n in names if n.startswith(f"{last}.")))
'''
SERVER = """
import securefl


class Momentum(securefl.ServerOptimiser):
    lr: float = 0.1
    beta: float = 0.9

    def init(self, parameters):
        return {name: value.new_zeros(value.shape) for name, value in parameters.items()}

    def step(self, averaged, kept):
        moving = {n: self.beta * kept[n] + move for n, move in averaged.moves().items()}
        model = {name: averaged.last[name] + self.lr * v for name, v in moving.items()}
        return model, {**kept, **moving}
"""
SELECTOR = '''
import securefl


class Turns(securefl.Selector):
    """The clients that have waited longest."""

    n: int = 3

    def n_selected(self, n_clients):
        return min(self.n, n_clients)

    def select(self, standing, n, rng):
        waited = standing.rounds_waited
        chosen = sorted(standing.clients, key=lambda client: -waited.get(client, 0))[:n]
        return tuple(client for client in standing.clients if client in chosen)
'''
BASE = (
    "run.rounds=3",
    "algorithm.name=fedavg",
    "algorithm.local_steps=3",
    "train.batch_size=4",
    "train.lr=0.1",
    "exchange.encrypt=none",
)
NUMBERS = count()


@pytest.fixture(autouse=True)
def _nothing_is_allowed_yet(monkeypatch):
    monkeypatch.setattr(allowed_code, "_ALLOWED", set())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("strange_"):
            del sys.modules[name]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that nobody has loaded, and return its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text):
        name = f"strange_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def task(n_clients=4, **changes):
    rng = torch.Generator().manual_seed(1)
    sets = [(torch.randn(16, 4, generator=rng), torch.arange(16) % 3) for _ in range(n_clients + 1)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)]
    return securefl.Task(nn.Sequential(*layers), sets[:n_clients], sets[-1], **changes)


def run(*settings, job=None, **given):
    return securefl.run(securefl.load_config(None, [*BASE, *settings]), job or task(), **given)


def same(one, other):
    """The models have the same bits, and the rounds the same scores."""
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    assert [m.score for m in one.metrics] == [m.score for m in other.metrics]
    return all(torch.equal(value, theirs[name]) for name, value in ours.items())


def loaded(module, text, name):
    """The class of a module that is imported."""
    return getattr(importlib.import_module(module(text)), name)


BUILT_IN = "solver.name=fedprox", "solver.mu=0.5"


# --- ways to name it ---


def test_a_solver_named_in_settings_equals_the_built_in_one(module):
    own = run(f"solver.name={module(SOLVER)}:Proximal", "solver.mu=0.5")
    assert same(own, run(*BUILT_IN))
    assert not same(own, run("solver.name=sgd"))


def test_a_file_that_names_code_is_refused_until_it_is_allowed(module, tmp_path):
    """The message has the way out, which is followed here word for word."""
    name = f"{module(SOLVER)}:Proximal"
    path = tmp_path / "job.toml"
    path.write_text(f'[solver]\nname = "{name}"\nmu = 0.5\n')
    with pytest.raises(ConfigError) as refused:
        securefl.load_config(path, BASE)
    assert f'solver.name = "{name}" is code of this installation' in str(refused.value)
    assert name.partition(":")[0] not in sys.modules
    assert f"securefl --code {name}" in str(refused.value)
    (way_out,) = re.findall(r"in Python with securefl\.allow_code\('(.*)'\)", str(refused.value))
    securefl.allow_code(way_out)
    allowed = securefl.load_config(path, BASE)
    assert same(securefl.run(allowed, task()), run(*BUILT_IN))


def test_to_name_a_loaded_module_runs_nothing_of_it(module, tmp_path):
    """Also where it would make its names when they are asked for."""
    name = module("asked = []\ndef __getattr__(name):\n    asked.append(name)\n")
    asked = importlib.import_module(name).asked
    (path := tmp_path / "job.toml").write_text(f'[solver]\nname = "{name}:Proximal"\n')
    with pytest.raises(ConfigError, match="is code of this installation"):
        securefl.load_config(path)
    assert [of for of in asked if of != "__path__"] == []


def test_the_command_line_allows_code_that_a_file_names(module, tmp_path):
    """Of all commands; a run that is resumed needs it as the file does."""
    name = f"{module(SOLVER)}:Proximal"
    path, out = tmp_path / "job.toml", tmp_path / "out"
    path.write_text(f'[solver]\nname = "{name}"\n[algorithm]\nlocal_steps = 1\n[run]\nrounds = 1\n')
    command = ["run", str(path), "--encrypt", "none", "--out", str(out)]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert f"securefl --code {name}" in refused.output.replace("\n", " ")
    assert not out.exists()
    done = CliRunner().invoke(main, ["--code", name, *command])
    assert done.exit_code == 0, done.output
    assert read_config(out).solver.name == name
    del sys.modules[name.partition(":")[0]]
    allowed_code._ALLOWED.clear()
    with pytest.raises(ConfigError, match="is code of this installation"):
        read_config(out)


def test_an_option_that_names_code_is_the_users_own_word(module, tmp_path):
    name = f"{module(SOLVER)}:Proximal"
    few = ["--rounds", "1", "--encrypt", "none", "--set", "algorithm.local_steps=1"]
    done = CliRunner().invoke(main, ["run", "--solver", name, *few, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output


def register(monkeypatch, group, **points):
    """Have entry points of an installed package, and none else."""
    found = [importlib.metadata.EntryPoint(n, value, group) for n, value in points.items()]
    monkeypatch.setattr(
        choice, "entry_points", lambda group: [point for point in found if point.group == group]
    )


def test_an_entry_point_gives_it_a_short_name(module, monkeypatch, tmp_path):
    """Whoever installs a package allows it: a file may name it."""
    register(monkeypatch, "securefl.solver", proximal=f"{module(SOLVER)}:Proximal")
    path = tmp_path / "job.toml"
    path.write_text('[solver]\nname = "proximal"\nmu = 0.5\n')
    config = securefl.load_config(path, BASE)
    assert config.solver.name == "proximal"
    assert same(securefl.run(config, task()), run(*BUILT_IN))
    with pytest.raises(ConfigError, match=r"solver\.name = 'proximla': did you mean proximal\?"):
        securefl.load_config(None, ["solver.name=proximla"])


def test_what_parties_agree_on_holds_its_code(module, monkeypatch):
    """By either name, and not of ours alone."""
    one, other = module(SOLVER), module(SOLVER + "# changed\n")
    register(monkeypatch, "securefl.solver", proximal=f"{one}:Proximal")
    names = "sgd", "proximal", f"{one}:Proximal", f"{other}:Proximal"
    ours, *digests = (code_of(securefl.load_config(None, [f"solver.name={n}"])) for n in names)
    assert ours == ""
    assert digests[0] == digests[1] != digests[2]


def test_and_the_code_that_it_imports(module, tmp_path):
    """Wherever it imports it; of what is installed each party has its own version."""
    (tmp_path / "strange_parts").mkdir()
    (tmp_path / "strange_parts/__init__.py").write_text("")
    for name in ("near", "late"):
        (tmp_path / f"strange_parts/{name}.py").write_text("import torch\nSLOPE = 1\n")
    (tmp_path / "strange_parts/far.py").write_text("from .near import SLOPE\n")
    text = SOLVER.replace(
        "import securefl\n", "import securefl\nfrom strange_parts import far\n", 1
    )
    name = module(text + "\n\ndef later():\n    import strange_parts.late\n")
    config = securefl.load_config(None, [f"solver.name={name}:Proximal"])
    found = sources(type(config.solver), "it")
    assert set(found) == {name, "strange_parts", *(f"strange_parts.{m}" for m in FAR)}
    digests = [code_of(config)]
    for part in FAR:
        (tmp_path / f"strange_parts/{part}.py").write_text("SLOPE = 2\n")
        digests.append(code_of(config))
    assert len(set(digests)) == 4


def test_a_file_beside_it_that_nobody_can_import_is_compared_as_it_is(module, tmp_path):
    """An import that never runs may be of anything."""
    name = module(SOLVER + "\n\ndef never():\n    import strange_relic, strange_top\n")
    (tmp_path / "strange_relic.py").write_text("print 'as it was'\n")
    (tmp_path / "strange_top.py").write_text("from ... import nothing\n")
    config = securefl.load_config(None, [f"solver.name={name}:Proximal"])
    assert set(sources(type(config.solver), "it")) == {name, "strange_relic", "strange_top"}
    before = code_of(config)
    (tmp_path / "strange_relic.py").write_text("print 'changed'\n")
    assert code_of(config) != before


FAR = ("near", "far", "late")


def test_an_entry_point_replaces_no_choice_of_ours(module, monkeypatch):
    register(monkeypatch, "securefl.solver", fedprox=f"{module(SOLVER)}:Proximal")
    assert type(securefl.load_config(None, ["solver.name=fedprox"]).solver) is FedProx


def test_another_name_loads_no_entry_point(module, monkeypatch):
    name = module("raise RuntimeError('loaded')")
    register(monkeypatch, "securefl.solver", broken=f"{name}:Proximal")
    with pytest.raises(ConfigError, match=r"must be sgd, .*, broken, or MODULE:CLASS"):
        securefl.load_config(None, ["solver.name=nothing-like-it"])
    assert name not in sys.modules


def test_a_task_takes_it_as_an_object(module):
    proximal = loaded(module, SOLVER, "Proximal")
    own = run(job=task(choices=[proximal(mu=0.5)]))
    assert same(own, run(*BUILT_IN))


def test_a_task_takes_one_on_each_axis(module):
    proximal = loaded(module, SOLVER, "Proximal")
    for wrong in ([proximal(), proximal()], [object()], [SolverChoice()], [DrawnSelector()]):
        with pytest.raises(ConfigError, match="give one Normalisation, Solver, ServerOptimiser or"):
            run(job=task(choices=wrong))


def test_settings_give_the_keys_that_an_object_leaves_open(module, tmp_path):
    """Of the same name in its class; the run goes on with the same object."""
    given = "solver.name=fedprox", "solver.mu=0.5", "algorithm.local_steps=2"
    proximal, local = (
        loaded(module, SOLVER, "Proximal"),
        loaded(module, NORMALISATION, "LastLayerLocal"),
    )
    job = task(choices=[proximal(), local(weights="uniform")])
    with pytest.raises(StopError):
        run(*given, job=job, out=tmp_path / "run", on_round=stop_after_two)
    config = securefl.resume(tmp_path / "run", job).config
    assert (config.solver.mu, config.algorithm.local_steps) == (0.5, 2)
    assert config.algorithm.weights == "uniform"
    said = r"^solver\.mu = 0\.5, and the task's Proximal has mu = 0\.7: leave one of them out"
    with pytest.raises(ConfigError, match=said):
        run(*given, job=task(choices=[proximal(mu=0.7)]))


def test_a_tasks_choice_goes_with_the_settings_or_is_refused(module):
    """The rules between settings are asked of it, too."""

    class Server(loaded(module, SERVER, "Momentum")):
        pass

    with pytest.raises(ConfigError, match=r'solver\.name = "feddyn" with server\.name = "'):
        run("solver.name=feddyn", job=task(choices=[Server()]))


@pytest.mark.parametrize("kind", ["str", "Literal['sgd']"])
def test_an_object_under_a_name_of_ours_is_refused(module, kind):
    """Its folder would name ours, and go on with it."""
    text = SOLVER.replace("    mu: float =", f"    name: {kind} = 'sgd'\n    mu: float =")
    named = loaded(module, f"from typing import Literal\n{text}", "Proximal")
    with pytest.raises(ConfigError, match=r'solver.name = "sgd": is SecureFL.s own, .*:Proximal: '):
        run(job=task(choices=[named()]))


# --- what it may be combined with ---


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_it_is_stacked_where_it_says_so(module, engine):
    name = f"solver.name={module(SOLVER)}:Proximal"
    started = []
    own = run(name, "solver.mu=0.5", f"run.engine={engine}", on_start=started.append)
    assert same(own, run(*BUILT_IN, f"run.engine={engine}"))
    assert started[0].startswith(engine)


def test_auto_stacks_it(module):
    started = []
    run(f"solver.name={module(SOLVER)}:Proximal", on_start=started.append)
    assert started[0].startswith("vectorised: ")


SILENT = SOLVER.replace("    elementwise = True\n", "")
SUBCLASS = """
from securefl.algorithms.solvers.fedprox import FedProx


class Proximal(FedProx):
    pass
"""


@pytest.mark.parametrize("text", [SILENT, SUBCLASS], ids=["says nothing", "subclass"])
def test_it_is_not_stacked_where_it_does_not_say_so_itself(module, text):
    """A class that it derives from cannot say it: a subclass may do anything."""
    name = f"solver.name={module(text)}:Proximal"
    with pytest.raises(ConfigError, match=r"side by side: the solver Proximal does not treat"):
        run(name, "run.engine=vectorised")
    started = []
    own = run(name, "solver.mu=0.5", on_start=started.append)
    assert started[0].startswith("sequential: ")
    assert same(own, run(*BUILT_IN, "run.engine=sequential"))


def test_a_subclass_is_another_choice_than_ours(module, tmp_path):
    """Its folder names it and not what it derives from, and goes on with it."""
    own = loaded(module, SUBCLASS, "Proximal")()
    run(job=task(choices=[own]), out=tmp_path / "run")
    assert read_config(tmp_path / "run").solver == own
    assert own.name == f"{type(own).__module__}:Proximal"


def by_copy_of_feddyn(module, without=""):
    """The settings of a solver that is FedDyn's file again, of another module."""
    own = (Path(securefl.__file__).parent / "algorithms/solvers/feddyn.py").read_text()
    own = own.replace('    name: Literal["feddyn"] = "feddyn"\n', "").replace(without, "", 1)
    return f"solver.name={module(own)}:FedDyn", "solver.alpha=0.9"


def with_public():
    job = task(5)
    return securefl.Task(job.model, job.clients[:4], job.test, public=job.clients[4])


REFINED = ("fnr.name=matched", "fnr.share=0.25", "fnr.epochs=1", "fnr.batch_size=4")


def test_what_it_keeps_follows_the_refinement_where_it_says_so(module):
    """FedDyn's own file from outside is FedDyn under FNR-FL, and not where the trait is left out.

    The server's half of FedDyn finds both by their traits.
    """
    job, ours = with_public(), ("solver.name=feddyn", "solver.alpha=0.9")
    own = run(*by_copy_of_feddyn(module), *REFINED, job=job)
    assert same(own, run(*ours, *REFINED, job=job))
    silent = by_copy_of_feddyn(module, "    follows_refinement: ClassVar[bool] = True\n")
    other = run(*silent, *REFINED, job=job).model.state_dict()
    assert not all(torch.equal(v, other[n]) for n, v in own.model.state_dict().items())


def test_a_trait_without_its_method_is_refused_in_words(module):
    text = SOLVER.replace("elementwise = True", "follows_refinement = True")
    with pytest.raises(ConfigError, match="sets follows_refinement and lacks followed"):
        run(f"solver.name={module(text)}:Proximal", *REFINED, job=with_public())


RECORD = (
    "privacy.level=record",
    "privacy.records=12",
    "privacy.sigma=8.0",
    "privacy.clip=0.1",
    "privacy.delta=1e-3",
    "privacy.noise=seeded",
    "privacy.statistics_sigma=0.05",
    "algorithm.name=fixbn",
    "algorithm.weights=uniform",
    "run.engine=sequential",
)


def test_it_trains_privately_on_records(module):
    own = run(f"solver.name={module(SOLVER)}:Proximal", "solver.mu=0.5", *RECORD)
    assert same(own, run(*BUILT_IN, *RECORD))


TWICE = SOLVER.replace(
    "        self.start.backward(around)\n",
    "        self.start.backward(around)\n        self.start.backward(around)\n",
)
SAID = TWICE.replace("    mu: float", '    second_gradient = "it looks twice"\n    mu: float')


def test_a_second_look_at_records_is_refused(module):
    """By its word before anything is trained, and without a word when it looks."""
    with pytest.raises(ConfigError, match="it looks twice, which DP-SGD does not clip"):
        run(f"solver.name={module(SAID)}:Proximal", *RECORD)
    with pytest.raises(ConfigError, match="takes two gradients in a step"):
        run(f"solver.name={module(TWICE)}:Proximal", *RECORD)


def test_it_travels_sealed(module, key_set):
    settings = "exchange.encrypt=model", "solver.mu=0.5"
    own = run(f"solver.name={module(SOLVER)}:Proximal", *settings, keys=key_set)
    assert own.ledger.server_reads() == set()
    clear = run(*BUILT_IN).model.state_dict()
    for name, value in own.model.state_dict().items():
        assert (value.double() - clear[name].double()).abs().max() < 1e-4


class StopError(Exception):
    """Stands for a crash."""


def stop_after_two(metrics):
    if metrics.round == 2:
        raise StopError


@pytest.mark.parametrize("named", ["settings", "task"])
def test_it_goes_on_from_its_folder(module, tmp_path, named):
    proximal = loaded(module, SOLVER, "Proximal")
    name = f"solver.name={proximal.__module__}:Proximal"
    settings = (name, "solver.mu=0.5") if named == "settings" else ()
    job = task() if named == "settings" else task(choices=[proximal(mu=0.5)])
    with pytest.raises(StopError):
        run(*settings, job=job, out=tmp_path / "run", on_round=stop_after_two)
    assert same(securefl.resume(tmp_path / "run", job), run(*BUILT_IN))


def test_it_goes_on_with_no_other(module, tmp_path):
    proximal = loaded(module, SOLVER, "Proximal")
    mine = task(choices=[proximal(mu=0.5)])
    with pytest.raises(StopError):
        run(job=mine, out=tmp_path / "run", on_round=stop_after_two)
    with pytest.raises(ConfigError, match=r"choices are other than this run's, .*mu=0\.5"):
        securefl.resume(tmp_path / "run", task(choices=[proximal(mu=0.7)]))
    assert same(securefl.resume(tmp_path / "run", task()), run(*BUILT_IN))


@pytest.mark.slow
def test_workers_train_it(module):
    engine = "run.engine=parallel", "run.workers=2", "run.threads=1"
    own = run(f"solver.name={module(SOLVER)}:Proximal", "solver.mu=0.5", *engine)
    assert same(own, run(*BUILT_IN, "run.engine=sequential"))


# --- the other axes ---


def test_a_normalisation_keeps_a_layer_at_the_clients(module):
    """The last BN layer of two stays; the first travels."""
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5)]
    job = task()
    model = nn.Sequential(*layers, nn.Linear(5, 3))
    job = securefl.Task(model, job.clients, job.test)
    own = run(f"algorithm.name={module(NORMALISATION)}:LastLayerLocal", job=job)
    kept = [client.state_dict() for client in own.client_models.values()]
    for name in kept[0]:
        if not name.endswith("num_batches_tracked"):
            alike = all(torch.equal(kept[0][name], other[name]) for other in kept[1:])
            assert alike == (not name.startswith("3.")), name


def test_a_normalisation_that_mixes_records_is_not_private(module):
    """It need not say so: the model is tried."""
    name = f"algorithm.name={module(NORMALISATION)}:LastLayerLocal"
    alone = "algorithm.name", "privacy.statistics_sigma"
    private = [setting for setting in RECORD if not setting.startswith(alone)]
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        run(name, *private)


def test_a_server_optimiser_equals_the_built_in_one(module):
    keys = "server.lr=0.3", "server.beta=0.5"
    own = run(f"server.name={module(SERVER)}:Momentum", *keys)
    assert same(own, run("server.name=momentum", "server.lr=0.3", "server.momentum=0.5"))


def test_a_selector_chooses_who_trains(module):
    own = run(f"selection.name={module(SELECTOR)}:Turns", "selection.n=2")
    rounds = [sorted(found.present) for found in own.participants]
    assert [len(clients) for clients in rounds] == [2, 2, 2]
    assert rounds[0] == rounds[2]
    assert not set(rounds[0]) & set(rounds[1])


def test_a_selector_that_asks_for_sizes_says_so_where_privacy_is_counted(module):
    """Whether or not it has words for what clients tell."""
    text = SELECTOR.replace("    n: int = 3\n", '    n: int = 3\n    asks = ("selection/size",)\n')
    level = "privacy.level=client", "privacy.delta=1e-3", "algorithm.weights=uniform"
    name = f"selection.name={module(text)}:Turns"
    assert (
        WithoutPrivacy(
            f'selection.name = "{name.partition("=")[2]}" (clients tell their selection/size)'
        )
        in run(name, *level).history.client
    )


def test_a_selector_is_an_option_with_its_keys(module, tmp_path):
    name = f"{module(SELECTOR)}:Turns"
    few = ["--rounds", "1", "--encrypt", "none", "--set", "algorithm.local_steps=1"]
    command = ["run", "--algorithm", "fedavg", "--select", f"{name}:n=4", *few]
    done = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert read_config(tmp_path / "out").selection.n == 4


def by(line, module):
    """Settings of the selector with one more line in its class."""
    text = SELECTOR.replace("    n: int = 3\n", f"    n: int = 3\n    {line}\n")
    return f"selection.name={module(text)}:Turns"


def test_a_selector_that_asks_for_profiles_needs_no_other_trait(module):
    """Its profiles may be sealed, and their noise is a setting of both levels."""
    near = by('asks = ("profile",)', module)
    sealed = securefl.load_config(None, [near, 'exchange.encrypt=["statistics", "profiles"]'])
    assert sealed.seals_scores
    for level, own in (("record", "statistics_clip"), ("client", "score_clip")):
        keys = f"privacy.level={level}", "privacy.records=99" if level == "record" else ""
        noisy = (*BASE, *filter(None, keys), "algorithm.weights=uniform", f"privacy.{own}=0.2")
        model = "model.norm=group" if level == "record" else "model.norm=batch"
        config = securefl.load_config(None, [*noisy, model, near, "privacy.statistics_sigma=0.2"])
        assert config.privacy.statistics_sigma == 0.2
        with pytest.raises(ConfigError, match="statistics_sigma"):
            securefl.load_config(None, [*noisy, model, "privacy.statistics_sigma=0.2"])


# --- what is wrong with it, in words ---


def test_a_selector_that_needs_devices_is_refused_without(module):
    slow = by("needs_devices = True", module)
    assert "none is faster: set devices.preset" in refusal(slow)
    assert securefl.load_config(None, [slow, "devices.preset=emnist"]).selection.needs_devices


def test_a_selector_of_too_few_for_a_total_is_told_how_many(module):
    name = f"{module(SELECTOR)}:Turns"
    said = f'^4 clients, of which selection.name = "{name}" selects 2: the authority opens totals'
    with pytest.raises(ConfigError, match=said):
        run(f"selection.name={name}", "selection.n=2", "exchange.encrypt=model")


def test_a_selector_that_chooses_too_few_for_a_total_is_refused(module):
    name = module(SELECTOR.replace(CHOSEN, "return standing.clients[:2]"))
    said = "Turns.select chose client-1, client-2: it must choose n = 4; fewer than 3 train nothing"
    with pytest.raises(ConfigError, match=said):
        run(f"selection.name={name}:Turns", "selection.n=4", "exchange.encrypt=model")


def refusal(*settings):
    with pytest.raises(ConfigError) as refused:
        securefl.load_config(None, settings)
    return str(refused.value)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_tensor_that_there_is_none_of_is_refused(module, engine):
    """A layer that should stay would travel else, and control would be left out in silence."""
    typo = NORMALISATION.replace("local=frozenset(", 'local={"2.wieght"} | frozenset(')
    said = r"RoundNorm\.local with 2\.wieght: .* some of the model's, .* 1\.weight, 3\.bias, 3\."
    with pytest.raises(ConfigError, match=said):
        run(f"algorithm.name={module(typo)}:LastLayerLocal", f"run.engine={engine}")
    extra = SOLVER.replace(", {}, {})", ", trained(self.start), {})")
    with pytest.raises(ConfigError, match=r"End\.control with 0\.bias, .* control\(\), none"):
        run(f"solver.name={module(extra)}:Proximal", f"run.engine={engine}")


def changed(axis, old, new):
    """The table, the class, and the text of a choice of one's own with a piece of another kind."""
    table, kind, text = {
        "solver": ("solver", "Proximal", SOLVER),
        "normalisation": ("algorithm", "LastLayerLocal", NORMALISATION),
        "server": ("server", "Momentum", SERVER),
        "selector": ("selection", "Turns", SELECTOR),
    }[axis]
    assert old in text
    return table, kind, text.replace(old, new, 1)


TRAINED, STEPPED = "End(trained(self.start)", "return model, {**kept, **moving}"
CHOSEN = "return tuple(client for client in standing.clients if client in chosen)"
NAMES = "0.bias, 0.weight, 1.bias, 1.weight, 3.bias, 3.weight"
BEGIN_NONE = "solver", "return Round(start, self.mu)", "return None"
LACKS = "solver", TRAINED, "End({n: w for n, w in trained(self.start).items() if n != '0.bias'}"
BUILD_NONE = "normalisation", "return local\n", "return None\n"
UNKNOWN = "server", STEPPED, "return {**model, '0.wieght': model['0.weight']}, kept"
UNASKED = "selector", "standing.rounds_waited", "standing.n_samples"
BREACHES = [
    (
        BEGIN_NONE,
        "begin returned None: it must return an object with the methods gradients and end",
    ),
    (("solver", "return End(", "End("), "begin's Round.end returned None: it must return an End"),
    (LACKS, f"Round.end returned End.parameters without 0.bias: .* Start.origin, {NAMES}"),
    (("solver", TRAINED, "End({**trained(self.start), 'x': 1}"), "End.parameters with int as 'x'"),
    (
        ("solver", TRAINED, "End({n: w[:1] for n, w in trained(self.start).items()}"),
        r"with 0.weight of shape \(1, 4\): it must be \(6, 4\)",
    ),
    *(
        (
            ("solver", TRAINED, f"End({{n: w.{change} for n, w in trained(self.start).items()}}"),
            f"End.parameters with 0.weight of {said}",
        )
        for change, said in (
            ("long()", "dtype torch.int64: it must be torch.float32"),
            ("to(torch.complex64)", "dtype torch.complex64: it must be torch.float32"),
            ("to_sparse()", "layout torch.sparse_coo: it must be torch.strided"),
            ("to('meta')", "is_meta True: it must be False"),
        )
    ),
    (("solver", ", {}, {})", ", {}, None)"), "Round.end returned None as End.client_state"),
    (
        ("solver", "    def begin", "    def control(self, model):\n        pass\n\n    def begin"),
        "control returned None as its result: it must be a dict of tensors by name",
    ),
    (BUILD_NONE, r"build returned None: it must return a function \(state, model\)"),
    (
        ("normalisation", "return RoundNorm(", "RoundNorm("),
        "build's policy returned None: it must return a RoundNorm",
    ),
    (("normalisation", "frozenset(", "list("), "policy returned list: .* RoundNorm.local as a fro"),
    *(
        (
            ("normalisation", "RoundNorm(local", f"RoundNorm({field}={wrong}, local"),
            rf"policy returned \w+ as RoundNorm.{field}: it must be {due}",
        )
        for field, wrong, due in (
            ("pooling", "'x'", "Pooling or None"),
            ("freeze", "'both'", "Freeze or None"),
            ("static", "'no'", "bool"),
            ("following", "'x'", "Following or None"),
            ("measurement", "int", "Measurement or None"),
            ("layers_alone", "1", "bool"),
        )
    ),
    (UNKNOWN, f"step returned a next model with 0.wieght: .* Averaged.last, {NAMES}"),
    (
        ("server", STEPPED, "return {n: w.long() for n, w in model.items()}, kept"),
        "a next model with 0.weight of dtype torch.int64: it must be torch.float32",
    ),
    (("server", STEPPED, "return {}, kept"), f"returned a next model without {NAMES}: "),
    (("server", STEPPED, "return model"), "step returned dict: it must return the next model and"),
    (("server", STEPPED, "return model, {'t': 1}"), "step returned what is kept with int as 't'"),
    (("server", "return {name", "{name"), "init returned None as its result: it must be a dict"),
    (("selector", CHOSEN, "return ('nobody', *chosen)"), "chose nobody: .* of client-1, client-2"),
    (("selector", CHOSEN, "return standing.clients"), "chose 4 clients: it must choose n = 3"),
    (("selector", CHOSEN, "return chosen[0]"), "select returned str: .* a tuple of clients"),
    (("selector", CHOSEN, "return (chosen[0],) * n"), "chose a client twice of client-1, client-1"),
    (
        ("selector", CHOSEN, "return ()"),
        "chose nobody: it must choose n = 3; fewer than 1 ",
    ),
    (
        ("selector", CHOSEN, "return [[c] for c in chosen]"),
        "chose list: it must choose of client-",
    ),
    (UNASKED, r'reads standing.n_samples, .* must have asks = \("selection/size",\)'),
    (
        ("selector", "standing.rounds_waited", "standing.time_s"),
        "reads standing.time_s, .* must have needs_devices = True",
    ),
    (("selector", "return min(self.n, n_clients)", "return 0"), "n_selected returned 0: .* 1"),
    (
        ("selector", "    n: int = 3\n", "    n: int = 3\n    def scores(self, standing): pass\n"),
        "scores returned None: it must return a dict of numbers by client",
    ),
]


@pytest.mark.parametrize(("breach", "said"), BREACHES)
def test_what_breaks_the_interface_is_said_in_words(module, breach, said):
    """With the class and the method; no traceback."""
    table, kind, text = changed(*breach)
    name = module(text)
    with pytest.raises(ConfigError, match=rf"^{name}\.{kind}\..*{said}"):
        run(f"{table}.name={name}:{kind}", "run.engine=sequential")


@pytest.mark.parametrize("around", [RECORD, ("server.name=fednova",)], ids=["DP-SGD", "FedNova"])
@pytest.mark.parametrize("breach", [BEGIN_NONE, LACKS], ids=["begin", "end"])
def test_and_within_a_solver_of_ours(module, breach, around):
    table, kind, text = changed(*breach)
    name = module(text)
    with pytest.raises(ConfigError, match=rf"{name}\.Proximal\.begin.* (None|without 0\.bias): "):
        run(f"{table}.name={name}:{kind}", *around)


@pytest.mark.parametrize("axis", ["solver", "normalisation", "server"])
def test_and_at_a_site(module, axis):
    """Its job has the choice behind the same checks, and ours without."""
    table, kind, text = changed(axis, "", "")
    own = {"solver": OwnSolver, "normalisation": OwnPolicy, "server": OwnServer}
    for name, checked in ((f"{table}.name={module(text)}:{kind}", {own[axis]}), ("", set())):
        config = securefl.load_config(None, [*BASE, *filter(None, [name])])
        chosen = job_of(config, task(), here=("client-1",)).algorithm.inner
        parts = {type(chosen.solver), type(chosen.normalisation), type(chosen.server)}
        assert parts & set(own.values()) == checked


def test_a_refinement_that_returns_no_algorithm_is_refused():
    class Empty(FnrChoice):
        def around(self, inner, context):
            pass

    job = with_public()
    job = securefl.Task(job.model, job.clients, job.test, public=job.public, choices=[Empty()])
    with pytest.raises(
        ConfigError, match=r"Empty\.around returned None: .* init and plan and client"
    ):
        run(job=job)


@pytest.mark.slow
def test_and_in_workers(module):
    table, kind, text = changed(*LACKS)
    engine = "run.engine=parallel", "run.workers=2", "run.threads=1"
    with pytest.raises(ConfigError, match=r"End\.parameters without 0\.bias"):
        run(f"{table}.name={module(text)}:{kind}", *engine)


def test_fednova_counts_around_a_solver_of_ones_own(module):
    """Its count of steps is no control of that solver's."""
    own = run(f"solver.name={module(SOLVER)}:Proximal", "solver.mu=0.5", "server.name=fednova")
    assert same(own, run(*BUILT_IN, "server.name=fednova"))


def test_a_key_without_a_default_must_be_given(module):
    name = f"solver.name={module(SOLVER.replace('mu: float = 0.01', 'mu: float'))}:Proximal"
    assert refusal(name) == "solver.mu: is missing, and has no default: write solver.mu = value"
    assert securefl.load_config(None, [name, "solver.mu=0.5"]).solver.mu == 0.5


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("solver.mu=many", "solver.mu = 'many': input should be a valid number"),
        ("solver.nu=1", "solver.nu: no such key; did you mean solver.mu?"),
        ("solver.wholly_other=1", "solver.wholly_other: no such key; known here: name, mu"),
        ("solver.temperature=3.0", 'solver.temperature = 3.0 is read with solver.name = "moon"'),
    ],
)
def test_its_keys_are_checked_like_ours(module, setting, said):
    assert said in refusal(f"solver.name={module(SOLVER)}:Proximal", setting)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1/0", "cannot be loaded (ZeroDivisionError: division by zero)"),
        ("import nothing_like_it", "(ModuleNotFoundError: No module named 'nothing_like_it')"),
        ("def x(:", "cannot be loaded (SyntaxError: "),
        ("", "cannot be loaded (AttributeError: "),
        ("Proximal = 3", "is none that this table takes: derive its class from securefl.Solver"),
        (
            "class Proximal: pass",
            "is none that this table takes: derive its class from securefl.Solver",
        ),
        (
            SERVER.replace("Momentum", "Proximal"),
            "is none that this table takes: derive its class from securefl.Solver",
        ),
        (
            SOLVER.replace("def begin", "def commence"),
            "the class lacks begin: define what securefl.Solver asks",
        ),
    ],
    ids=[
        *("raises", "lacks a module", "no Python", "lacks it", "a number", "a class", "a server"),
        "abstract",
    ],
)
def test_what_cannot_be_loaded_is_said_in_words(module, monkeypatch, text, said):
    """Also by an entry point; no traceback."""
    name = module(text)
    assert said in (found := refusal(f"solver.name={name}:Proximal"))
    assert f'solver.name = "{name}:Proximal"' in found
    sys.modules.pop(name, None)
    register(monkeypatch, "securefl.solver", proximal=f"{name}:Proximal")
    assert said in refusal("solver.name=proximal")


FIXED = 'name: Literal["my-dyn"] = "my-dyn"'


def test_a_class_that_fixes_its_name_is_refused_by_another_with_a_way_out(module):
    """By a Literal; one that has a name of its own and leaves others be is called by both."""
    fixed = SOLVER.replace("    mu: float =", f"    {FIXED}\n    mu: float =")
    fixed = fixed.replace("import securefl\n", "from typing import Literal\n\nimport securefl\n", 1)
    name = f"{module(fixed)}:Proximal"
    said = refusal(f"solver.name={name}")
    assert f"solver.name = \"{name}\": its class is called 'my-dyn' by a Literal" in said
    assert "leave name out of the class, or write name: str" in said
    free = fixed.replace('Literal["my-dyn"] =', "str =")
    name = f"{module(free)}:Proximal"
    assert securefl.load_config(None, [f"solver.name={name}"]).solver.name == name


def test_a_model_whose_statistics_stay_is_not_said_to_have_none(module):
    """A normalisation of one's own keeps the one BN layer at clients; no trait says so."""
    name = f"{module(NORMALISATION)}:LastLayerLocal"
    with pytest.raises(ConfigError, match="they stay with the clients: nothing would"):
        run(f"algorithm.name={name}", "exchange.encrypt=statistics")


def test_a_module_that_is_nowhere_is_said_in_words():
    said = refusal("solver.name=strange_nowhere:Proximal")
    assert "(ModuleNotFoundError: No module named 'strange_nowhere')" in said
    assert "install the module here, put its folder into PYTHONPATH" in said
