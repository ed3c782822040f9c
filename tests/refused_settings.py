"""Wrong settings, one for each rule, with what the message on each must hold."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RECORD = (
    "privacy.level=record",
    "privacy.records=100",
    "algorithm.weights=uniform",
    "train.batch_size=8",
)
CLIENT = ("privacy.level=client", "algorithm.weights=uniform")
SITES = (
    'data.names=["a","b","c"]',
    'samples.columns=["x"]',
    "samples.most=10",
    'samples.classes=["p","q"]',
)
DOMAINS = ("data.dataset=folders", "data.root=pictures")
READINGS = ("data.dataset=gas-turbine", "data.root=gas", "data.partition=iid")
ALONE = ("algorithm.name=singlenet", "exchange.encrypt=none")


class Wrong(NamedTuple):
    """Settings, and the parts of the message on them."""

    settings: tuple[str, ...]
    place: str
    """The key and its value, as the message begins."""
    rule: str
    """The rule; with a range or a list of values it is the way out, too."""
    cure: str = ""


WRONG = {
    "unknown table": Wrong(
        ("algoritm.name=fedavg",), "algoritm", "no such key", "did you mean algorithm?"
    ),
    "unknown key": Wrong(
        ("algorithm.nmae=fixbn",), "algorithm.nmae", "no such key", "did you mean algorithm.name?"
    ),
    "unknown key, nothing like it": Wrong(
        ("train.zzz=1",),
        "train.zzz",
        "no such key; known here",
        "batch_size, precision, lr, lr_drops, lr_drop_factor, lr_decay,",
    ),
    "unknown name": Wrong(
        ("solver.name=fedporx",),
        "solver.name = 'fedporx'",
        "did you mean fedprox? Must be sgd, fedprox, scaffold, moon,",
    ),
    "name of no text": Wrong(
        ("solver.name=3",), "solver.name = 3", "must be text, write it in quotes"
    ),
    "a table as a value": Wrong(
        ("solver=3",), "'solver=3'", "write table.key=value, for example train.lr=0.1"
    ),
    "a plain table as a value": Wrong(
        ("train=3",), "'train=3'", "write table.key=value, for example train.lr=0.1"
    ),
    "a key that others read": Wrong(
        ("solver.mu=0.1",),
        "solver.mu = 0.1",
        'is read with solver.name = "fedprox" or "moon" alone, not with "sgd"',
        "leave it out",
    ),
    "below a range": Wrong(
        ("run.rounds=0",), "run.rounds = 0", "input should be greater than or equal to 1"
    ),
    "above a range": Wrong(
        ("train.momentum=1.0",), "train.momentum = 1.0", "input should be less than 1"
    ),
    "one of a list": Wrong(
        ("train.lr_drops=[2,1]",), "train.lr_drops = 2: ", "less than 1", "train.lr_drops = 1: "
    ),
    "one of a list of texts": Wrong(
        ("data.names=[1]",), "data.names = 1", "must be text, write it in quotes"
    ),
    "no number": Wrong(("train.lr=fast",), "train.lr = 'fast'", "input should be a valid number"),
    "no whole number": Wrong(
        ("data.clients=2.5",), "data.clients = 2.5", "input should be a valid integer"
    ),
    "no truth value": Wrong(
        ("run.reproducible=7",), "run.reproducible = 7", "input should be a valid boolean"
    ),
    "none of a list": Wrong(
        ("model.norm=btach",),
        "model.norm = 'btach'",
        "input should be 'batch', 'group', 'layer', 'instance', 'group-ws'",
    ),
    "infinite": Wrong(
        ("train.weight_decay=inf",), "train.weight_decay = inf", "input should be a finite number"
    ),
    "no name for a folder": Wrong(
        ("run.name=a/b",), "run.name = 'a/b'", "must be 1 to 80 letters, digits, and any of . _ + -"
    ),
    "no device": Wrong(
        ("run.device=gpu",),
        "run.device = 'gpu'",
        "must be cpu, cuda, or cuda:1 and so on",
    ),
    "a part of encrypt": Wrong(
        ("exchange.encrypt=models",),
        "exchange.encrypt = 'models'",
        "input should be 'statistics', 'profiles' or 'model'",
    ),
    "model of no name": Wrong(
        ("model.name=mpl",),
        "model.name = 'mpl'",
        "must be mlp, cnn, resnet20, alexnet, unet, or MODULE:FUNCTION",
    ),
    "metric of no name": Wrong(
        ("run.metric=auroc",),
        "run.metric = 'auroc'",
        "must be one of accuracy, label-accuracy, balanced-accuracy, macro-f1, auc, "
        "calibration-error, r2, c-index, dice, or MODULE:FUNCTION",
    ),
    "workers without an engine": Wrong(
        ("run.workers=2",),
        "run.workers = 2",
        'goes with run.engine = "parallel" or "ray", not with "auto": set that',
        "or leave run.workers out",
    ),
    "groups without a norm": Wrong(
        ("model.groups=4",),
        "model.groups = 4",
        'goes with model.norm = "group" or "group-ws" alone, not with',
        "or leave model.groups out",
    ),
    "code that is nowhere": Wrong(
        ("solver.name=nowhere:Mine",),
        'solver.name = "nowhere:Mine"',
        "cannot be loaded (ModuleNotFoundError: No module named 'nowhere')",
        "install the module here, put its folder into PYTHONPATH, or mend it",
    ),
    "code of no solver": Wrong(
        ("solver.name=json:loads",),
        'solver.name = "json:loads"',
        "is none that this table takes",
        "derive its class from securefl.Solver",
    ),
    **{
        f"a base class of ours, {base}": Wrong(
            (f"{table}.name=securefl.settings.axes:{base}",),
            f'{table}.name = "securefl.settings.axes:{base}"',
            "is none that this table takes",
            f"derive its class from securefl.{public}",
        )
        for table, base, public in (
            ("solver", "SolverChoice", "Solver"),
            ("server", "ServerChoice", "ServerOptimiser"),
            ("selection", "SelectorChoice", "Selector"),
            ("selection", "DrawnSelector", "Selector"),
        )
    },
    "a refinement's base class": Wrong(
        ("fnr.name=securefl.settings.axes:FnrChoice",),
        'fnr.name = "securefl.settings.axes:FnrChoice"',
        "is the class to derive from, and does nothing",
        "name one of your own that derives from securefl.settings.axes.FnrChoice",
    ),
    "code of ours by its class": Wrong(
        ("solver.name=securefl.algorithms.solvers.fedprox:FedProx",),
        'solver.name = "securefl.algorithms.solvers.fedprox:FedProx"',
        "its class is called 'fedprox' by a Literal, and so by no other name",
        "take solver.name = 'fedprox'",
    ),
    "code in part": Wrong(
        ("solver.name=securefl.algorithms.solvers.solver:Solver",),
        'solver.name = "securefl.algorithms.solvers.solver:Solver"',
        "the class lacks begin",
        "define what securefl.Solver asks",
    ),
    "below a choice's range": Wrong(
        ("solver.name=fedprox", "solver.mu=-1.0"),
        "solver.mu = -1.0",
        "input should be greater than or equal to 0",
    ),
    "no setting": Wrong(
        ("train.lr",), "'train.lr'", "write table.key=value, for example train.lr=0.1"
    ),
    "root of digits": Wrong(
        ("data.root=mnist",),
        'data.root = "mnist"',
        "the digits come with scikit-learn",
        "leave data.root out, or name the data set that lies there in",
    ),
    "no root": Wrong(
        ("data.dataset=mnist",),
        'data.dataset = "mnist"',
        "needs data.root, the folder with train-images-idx3-ubyte.gz,",
    ),
    "a corruption twice": Wrong(
        ('data.corruptions=["fog","fog"]',),
        "data.corruptions",
        "fog more than once",
        "name it once",
    ),
    "noise of domains": Wrong(
        (
            *DOMAINS,
            "data.feature_noise=0.1",
        ),
        'data.feature_noise = 0.1 with data.dataset = "folders"',
        "its domains are its feature skew",
        "set data.feature_noise = 0.0",
    ),
    "quality of domains": Wrong(
        (
            *DOMAINS,
            "data.quality={blurred=0.1}",
        ),
        'data.quality = {blurred = 0.1} with data.dataset = "folders"',
        "its clients are its domains, whose samples stay",
        "leave data.quality out, or take a data set that a partition deals",
    ),
    "corruptions of domains": Wrong(
        (
            *DOMAINS,
            'data.corruptions=["fog"]',
        ),
        "data.corruptions = ['fog'] with data.dataset = \"folders\"",
        "its clients are its domains",
        "leave data.corruptions out",
    ),
    "patches of digits": Wrong(
        ("data.n_per_center=10",),
        "data.n_per_center",
        'goes with data.dataset = "camelyon17" alone',
    ),
    "two skews": Wrong(
        (
            'data.corruptions=["fog"]',
            "data.feature_noise=0.1",
        ),
        "data.corruptions and data.feature_noise",
        "are both feature skew, a client has one",
        "leave one out",
    ),
    "too few clients": Wrong(
        (
            'data.corruptions=["fog","snow"]',
            "data.clients=1",
        ),
        "data.clients = 1",
        "2 corruptions need as many clients or more",
    ),
    "alike": Wrong(
        ("data.leave_out=fog",),
        'data.leave_out = "fog"',
        'the clients of "digits" are alike; set data.corruptions, or a',
        "cifar10-c, folders, camelyon17",
    ),
    "spoilt twice": Wrong(
        (
            "data.quality={blurred=0.1}",
            "data.feature_noise=0.1",
        ),
        "data.quality and data.feature_noise",
        "both spoil a client's data, which are spoilt once",
        "leave one out",
    ),
    "more than all": Wrong(
        ("data.quality={blurred=0.7,irrelevant=0.7}",),
        "data.quality",
        "shares of clients that sum to 1.4",
        "together at most 1",
    ),
    "a key of a table in a table": Wrong(
        ("data.quality.blurred=2",), "data.quality.blurred = 2", "less than or equal to 1"
    ),
    "a key of a number": Wrong(
        ("train.lr=0.1", "train.lr.drop=2"),
        "train.lr = 0.1 and train.lr.drop",
        "give one of the two",
    ),
    "unknown quality": Wrong(
        ("data.quality={blurry=0.7}",),
        "data.quality.blurry",
        "no such key; known here",
        "'irrelevant', 'blurred', 'salt-and-pepper', 'polluted' or 'noisy'",
    ),
    "corrupted readings": Wrong(
        (
            *READINGS,
            'data.corruptions=["fog"]',
        ),
        "data.corruptions = ['fog'] with data.dataset = \"gas-turbine\"",
        "corruptions are of images, and these are readings",
        "leave them out, or set data.feature_noise or data.quality",
    ),
    "blurred readings": Wrong(
        (
            *READINGS,
            "data.quality={blurred=0.1}",
        ),
        "data.quality",
        'blurred is of images, and "gas-turbine" has readings',
        "take polluted or noisy",
    ),
    "classes of readings": Wrong(
        (
            "data.dataset=gas-turbine",
            "data.root=gas",
        ),
        'data.partition = "classes:2" with data.dataset = "gas-turbine"',
        "its targets are numbers and have no class to be dealt by",
        'set "iid", or "sizes:0.2" for clients of unequal size',
    ),
    "devices in part": Wrong(
        ("devices.clock_ghz=1.0",),
        "devices.clock_ghz = 1.0",
        "bandwidth_mhz, snr_db, bits_per_sample, cycles_per_bit are missing;",
        "gasturbine, emnist, cifar10",
    ),
    "deadline without devices": Wrong(
        ("devices.deadline_s=3.0",),
        "devices.deadline_s = 3.0",
        "without devices nothing takes time",
        "set devices.preset, one of gasturbine, emnist, cifar10, or their",
    ),
    "no preset": Wrong(
        ("devices.preset=cifar",),
        "devices.preset = 'cifar'",
        "input should be 'gasturbine', 'emnist' or 'cifar10'",
    ),
    "old name": Wrong(
        ("sites.short=pass",), "sites.short", "its name is sites.late now", 'write late = "pass"'
    ),
    "quorum": Wrong(
        (
            "sites.quorum=4",
            'data.names=["a","b","c"]',
        ),
        "sites.quorum = 4",
        "there are 3 clients (data.names), so no round would ever begin",
        "have a smaller one, or leave it out",
    ),
    "control variates of statistics at sites of unknown weights": Wrong(
        (*SITES, "algorithm.name=bn-scaffold"),
        'algorithm.weights = "samples"',
        "nobody tells the weight",
        'set algorithm.weights = "uniform"',
    ),
    "a metric of numbers where sites have classes": Wrong(
        (*SITES, "run.metric=r2"),
        'run.metric = "r2"',
        "needs a number for each target",
        "or leave it out",
    ),
    "no channels": Wrong(
        ("model.name=cnn", "model.width=0"),
        'model.width = 0 with model.name = "cnn"',
        "the mlp alone is linear",
        'set model.name = "mlp"',
    ),
    "a cure of BN for a model without": Wrong(
        ("algorithm.name=fixbn", "model.norm=layer"),
        'model.norm = "layer" with algorithm.name = "fixbn"',
        "the model has none",
        'set model.norm = "batch"',
    ),
    "Fixup without residual branches": Wrong(
        ("model.norm=fixup", "algorithm.name=fedavg"),
        'model.norm = "fixup" with model.name = "mlp"',
        "Fixup scales residual branches",
        'set model.name = "resnet20"',
    ),
    "a partition of no known form": Wrong(
        ("data.partition=clases:2",),
        'data.partition = "clases:2"',
        'must have the form "iid"',
    ),
    "a partition out of range": Wrong(
        ("data.partition=dirichlet:-1",),
        'data.partition = "dirichlet:-1"',
        "alpha must be a finite number above 0",
        'write "dirichlet:0.5"',
    ),
    "a corruption that is none": Wrong(
        ('data.corruptions=["foggy"]',),
        'data.corruptions: "foggy"',
        "must be one of gaussian_noise",
    ),
    "nobody of this name to leave out": Wrong(
        ('data.corruptions=["fog","snow"]', "data.leave_out=blur"),
        'data.leave_out = "blur"',
        "must be one of weather, fog, snow",
    ),
    "volumes of sites": Wrong(
        ("samples.shape=[1,8,8,8]", "samples.most=10", 'data.names=["a","b"]', "model.name=unet"),
        'model.name = "unet"',
        "it gives a class for each voxel, and sites have one target a sample",
        "take another model",
    ),
    "samples without a bound": Wrong(
        ('samples.columns=["x"]',),
        "samples.most",
        "is missing, and has no default",
        "write samples.most = value",
    ),
    "columns and shape": Wrong(
        (
            'samples.columns=["x"]',
            "samples.shape=[3]",
            "samples.most=10",
        ),
        "samples.columns = ['x'] with samples.shape = [3]",
        "columns are of tables, a shape is of arrays and pictures",
        "give one of the two",
    ),
    "events and classes": Wrong(
        (
            'samples.columns=["x"]',
            'samples.classes=["p","q"]',
            "samples.event=dead",
            "samples.most=10",
        ),
        'samples.event = "dead" with samples.classes',
        "an event has a time",
        "leave one of the two out",
    ),
    "records of survival": Wrong(
        ("data.dataset=lung", "algorithm.name=fixbn", *RECORD),
        'privacy.level = "record" with data.dataset = "lung"',
        "whose loss compares the records of a batch",
        'set privacy.level = "client"',
    ),
    "a column twice": Wrong(
        (
            'samples.columns=["x","x"]',
            "samples.most=10",
        ),
        "samples.columns, samples.target and samples.event",
        "x twice",
        "name each column once",
    ),
    "levels of no column": Wrong(
        (
            'samples.columns=["x"]',
            'samples.levels={y=["a","b"]}',
            "samples.most=10",
        ),
        "samples.levels",
        "y is not in samples.columns",
        "add it there",
    ),
    "a level twice": Wrong(
        (
            'samples.columns=["x"]',
            'samples.levels={x=["a","a"]}',
            "samples.most=10",
        ),
        "samples.levels.x",
        "a twice",
        "name it once",
    ),
    "one class": Wrong(
        (
            'samples.columns=["x"]',
            'samples.classes=["a"]',
            "samples.most=10",
        ),
        "samples.classes = ['a']",
        "is one class",
        "name two at least, or none for numbers",
    ),
    "units of no number": Wrong(
        (
            'samples.columns=["x"]',
            'samples.classes=["p","q"]',
            "samples.units={y=10}",
            "samples.most=10",
        ),
        "samples.units",
        "y is no column of numbers, nor a target that is one",
        "leave it out",
    ),
    "names of other clients": Wrong(
        (
            'data.names=["a","b","c"]',
            "data.clients=2",
        ),
        "data.clients = 2",
        "data.names has 3 names",
        "leave data.clients out, or name each client",
    ),
    "unknown data set": Wrong(
        ("data.dataset=imagenet",), "data.dataset = 'imagenet'", "must be one of digits"
    ),
    "data beside samples": Wrong(
        (
            *SITES,
            "data.partition=iid",
        ),
        "data.partition = 'iid' with [samples]",
        "sites bring their own data",
        "leave everything but data.names out of [data]",
    ),
    "samples without names": Wrong(
        (
            'samples.columns=["x"]',
            "samples.most=10",
            'samples.classes=["p","q"]',
        ),
        "[samples] without data.names",
        "name the sites as their certificates do",
    ),
    "standardised samples, private": Wrong(
        (*SITES, "privacy.level=client", "algorithm.name=fixbn", "algorithm.weights=uniform"),
        'samples.standardise = true with privacy.level = "client"',
        "exact sums over records",
        "set samples.standardise = false",
    ),
    "centralised samples": Wrong(
        (
            *SITES,
            "algorithm.name=centralised",
            "exchange.encrypt=none",
        ),
        'algorithm.name = "centralised" with [samples]',
        "nobody has the data of all sites",
        "take another algorithm",
    ),
    "width of own code": Wrong(
        (
            *SITES,
            "model.name=mine:model",
            "model.width=3",
        ),
        'model.width = 3 with model.name = "mine:model"',
        "it is of our own models",
        "leave it out",
    ),
    "unread public": Wrong(
        (
            *SITES,
            f"samples.public={64 * 'a'}",
        ),
        'samples.public = "aaaaaaaa…"',
        "nothing in this run reads public samples, as FedProf, FNR-FL and",
        "leave it out",
    ),
    "fnr of numbers": Wrong(
        (
            'data.names=["a","b","c"]',
            'samples.columns=["x"]',
            "samples.most=10",
            "fnr.name=matched",
        ),
        'fnr.name = "matched" without samples.classes',
        "FNR-FL compares feature norms class by class, and the targets are",
        'set fnr.name = "none"',
    ),
    "own model in a simulation": Wrong(
        ("model.name=mine:model",),
        'model.name = "mine:model"',
        "goes with [samples] alone, where sites bring their own data",
        "in a simulation of your own, give securefl.Task your model",
    ),
    "fedtan-ii never freezes": Wrong(
        (
            "algorithm.name=fedtan-ii",
            "algorithm.switch=200",
        ),
        "algorithm.switch = 200 with run.rounds = 200",
        "BN would never be frozen",
        "give an earlier round, or a share of the rounds such as 0.5",
    ),
    "fixbn never freezes": Wrong(
        (
            "algorithm.name=fixbn",
            "algorithm.switch=200",
        ),
        "algorithm.switch = 200 with run.rounds = 200",
        "BN would never be frozen",
        "give an earlier round, or a share of the rounds such as 0.5",
    ),
    "a window of all rounds": Wrong(
        ("algorithm.name=fixbn", "algorithm.switch=window", "run.rounds=21"),
        "algorithm.window = 20 with run.rounds = 21",
        "BN would never be frozen",
        "have a shorter window, or more rounds",
    ),
    "threshold": Wrong(
        (
            "algorithm.name=fixbn",
            "algorithm.switch=window",
            "algorithm.threshold=1e-9",
        ),
        "algorithm.threshold = 1e-09",
        "the authority releases a variance to 32 bits after the point, so",
    ),
    "window of clients": Wrong(
        (
            "algorithm.name=fixbn",
            *CLIENT,
            "algorithm.switch=window",
        ),
        'privacy.level = "client" with algorithm.switch = "window"',
        "the noise on what each client's window says would hide that it is full",
        "give a round, or a share",
    ),
    "affine of records": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "algorithm.freeze=affine",
        ),
        'privacy.level = "record" with algorithm.freeze = "affine"',
        "batches would go on being normalised by themselves",
        'freeze "statistics" or "both"',
    ),
    "window of records": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "algorithm.switch=window",
        ),
        'privacy.level = "record" with algorithm.switch = "window"',
        "to watch batch statistics settle would be a release of its own in",
        "give a round, or a share",
    ),
    "dropout of records": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "devices.preset=emnist",
            "devices.dropout=0.1",
        ),
        'privacy.level = "record" with algorithm.name = "fixbn" and',
        "the round that releases BN statistics could pass without clients,",
        "leave these out, or set privacy.warm_up",
    ),
    "unread switch": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "algorithm.switch=0.7",
        ),
        "algorithm.switch = 0.7 with privacy.releases = 1",
        "the one release is before the first round, and nothing reads when",
        "leave it out",
    ),
    "full of records": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "selection.name=random",
            "selection.aggregation=full",
        ),
        'privacy.level = "record" with algorithm.name = "fixbn" and',
        "clients that stay away would count with the statistics from",
        'set selection.aggregation = "partial"',
    ),
    "profiles by theorem 1": Wrong(
        (
            "selection.name=fedprof",
            "selection.alpha=theorem1",
            "exchange.encrypt=profiles",
        ),
        'exchange.encrypt = "profiles" with selection.alpha = "theorem1"',
        "clients are drawn by data share and send no profile; give a number",
        'or leave "profiles" out',
    ),
    "cfcfm": Wrong(
        ("selection.name=cfcfm",),
        'selection.name = "cfcfm"',
        "goes by the time that each client takes, and without devices none is faster",
        "set devices.preset, or the devices' speeds",
    ),
    "no such answer": Wrong(
        ("selection.name=__main__:Asking",),
        "selection.name = \"__main__:Asking\" asks clients for 'loss'",
        "names no other answers than 'selection/size', 'selection/loss', 'profile'",
    ),
    "answers in no tuple": Wrong(
        ("selection.name=__main__:AskingForOne",),
        'selection.name = "__main__:AskingForOne"',
        "its class has asks = 'profile', which must be a tuple of names",
        "as in asks = ('selection/size',)",
    ),
    "a trait that is no truth value": Wrong(
        ("selection.name=__main__:Unclear",),
        "__main__:Unclear",
        "its class has needs_devices = 'no', which must be",
        "True or False",
    ),
    "nothing encrypted": Wrong(
        (
            "algorithm.name=fedbn",
            "exchange.encrypt=statistics",
        ),
        'algorithm.name = "fedbn" with exchange.encrypt = "statistics"',
        "statistics stay with the clients, so nothing would be encrypted",
        'set exchange.encrypt = "model", or "none"',
    ),
    "two servers": Wrong(
        (
            "solver.name=feddyn",
            "server.name=momentum",
        ),
        'solver.name = "feddyn" with server.name = "momentum"',
        "its server takes a step of its own from the average",
        'set server.name = "average"',
    ),
    "followed refinement, divided by steps": Wrong(
        ("solver.name=feddyn", "server.name=fednova", "fnr.name=matched"),
        'solver.name = "feddyn" with server.name = "fednova" and fnr.name = "matched"',
        "what the solver keeps follows the refinement, and not through a division by steps",
        'set server.name = "average"',
    ),
    "two passes": Wrong(
        ("solver.name=per-fedavg",),
        'solver.name = "per-fedavg" with algorithm.name = "fedtan"',
        "a step has two forward and backward passes, and FedTAN pools one",
        'use another solver, or algorithm.name = "fedavg"',
    ),
    "no momentum": Wrong(
        ("train.momentum_across_rounds=global",),
        'train.momentum_across_rounds = "global" with train.momentum = 0',
        "there is nothing to average",
        'set train.momentum, 0.9 for example, or "reset"',
    ),
    "counted momentum": Wrong(
        (
            "server.name=fednova",
            "train.momentum=0.9",
            "train.momentum_across_rounds=local",
        ),
        'train.momentum_across_rounds = "local" with server.name = "fednova"',
        "the steps are counted of momentum that begins each round at zero",
        'set "reset", or server.name = "average"',
    ),
    "no profile": Wrong(
        ("exchange.encrypt=profiles",),
        'exchange.encrypt = "profiles" with selection.name = "all"',
        'no profile is sent; set selection.name = "fedprof"',
        'or leave "profiles" out',
    ),
    "full with a server half": Wrong(
        (
            "solver.name=feddyn",
            "selection.name=random",
            "selection.aggregation=full",
        ),
        'selection.aggregation = "full" with solver.name = "feddyn"',
        "its server makes the next model of the mean of those present",
        'set selection.aggregation = "partial"',
    ),
    "twice with a correction": Wrong(
        (
            "solver.name=scaffold",
            "selection.name=random",
            "selection.replacement=with",
        ),
        'selection.replacement = "with" with solver.name = "scaffold"',
        "its correction is a mean over clients, each with what it keeps",
        'set selection.replacement = "without"',
    ),
    "public of domains": Wrong(
        (
            *DOMAINS,
            "data.public=100",
        ),
        'data.dataset = "folders" with data.public = 100',
        "a public set is set aside of data that a partition deals, and",
        "take another data set, or give one in Python with Task(public=…)",
    ),
    "model of readings": Wrong(
        (
            *READINGS,
            "model.name=cnn",
        ),
        'model.name = "cnn" with data.dataset = "gas-turbine"',
        "readings are no images",
        'set model.name = "mlp"',
    ),
    "fnr of readings": Wrong(
        (
            *READINGS,
            "fnr.name=matched",
        ),
        'fnr.name = "matched" with data.dataset = "gas-turbine"',
        "FNR-FL compares feature norms class by class, and the targets are",
        'set fnr.name = "none"',
    ),
    "too many steps": Wrong(
        (
            "server.name=fednova",
            "algorithm.local_steps=9000",
        ),
        'server.name = "fednova" with algorithm.local_steps = 9000',
        "its count of steps, 9000 with this momentum, is sealed as a value",
        "take fewer local steps",
    ),
    "few officers": Wrong(
        (
            "exchange.officers=4",
            "exchange.threshold=2",
        ),
        "exchange.threshold = 2 of exchange.officers = 4",
        "must be more than half of them, or two halves could be shown two",
        "and at most all",
    ),
    "officers of noisy scores": Wrong(
        (
            "exchange.officers=3",
            *CLIENT,
            "algorithm.name=fedavg",
            "selection.name=fedprof",
        ),
        'exchange.officers = 3 with privacy.level = "client" and sealed',
        "the server adds up officers' answers, so nobody could add noise",
        "have one authority, or select by something else than profiles",
    ),
    "officers of nothing": Wrong(
        (
            "exchange.officers=3",
            "exchange.encrypt=none",
        ),
        "exchange.officers = 3",
        "open what is encrypted, and exchange.encrypt leaves all in the",
        "or leave them out",
    ),
    "blind officers": Wrong(
        (
            "exchange.officers=3",
            "exchange.blind=true",
        ),
        "exchange.blind with exchange.officers = 3",
        "the server adds up the officers' answers, and so reads all totals",
        "leave one of the two out",
    ),
    "blind in the clear": Wrong(
        (
            "exchange.blind=true",
            "exchange.encrypt=none",
        ),
        "exchange.blind",
        "exchange.encrypt leaves all sums in the clear, which the server",
        "or leave exchange.blind out",
    ),
    "blind of updates": Wrong(
        (
            "exchange.blind=true",
            "algorithm.name=fedavg",
        ),
        'exchange.blind with algorithm.name = "fedavg" and fnr.name = "none"',
        "the server applies all totals of these and so reads them; take",
        "or leave exchange.blind out",
    ),
    "alone, encrypted": Wrong(
        ("algorithm.name=singlenet",),
        'algorithm.name = "singlenet"',
        "sends nothing that could be encrypted",
        'set exchange.encrypt = "none"',
    ),
    "alone, server": Wrong(
        (
            *ALONE,
            "server.name=momentum",
        ),
        'algorithm.name = "singlenet" with server.name = "momentum"',
        "no models are averaged, so the server has no step to take",
        'set server.name = "average"',
    ),
    "alone, selection": Wrong(
        (
            *ALONE,
            "selection.name=random",
        ),
        'algorithm.name = "singlenet" with selection.name = "random"',
        "no round joins clients of whom some could stay away",
        'set selection.name = "all"',
    ),
    "alone, fnr": Wrong(
        (
            *ALONE,
            "fnr.name=matched",
        ),
        'algorithm.name = "singlenet" with fnr.name = "matched"',
        "FNR-FL compares the clients of a round",
        'set fnr.name = "none"',
    ),
    "tuned under layers that nobody trained": Wrong(
        ("algorithm.name=fedper", "fnr.name=server", "data.public=200"),
        'algorithm.name = "fedper" with fnr.name = "server"',
        "would train the layers that are shared together with first ones of those that stay",
        'set fnr.name = "none", or one by which clients train',
    ),
    "alone, solver": Wrong(
        (
            *ALONE,
            "solver.name=fedprox",
        ),
        'algorithm.name = "singlenet" with solver.name = "fedprox"',
        "there is no global model for a federated solver to hold on to",
        'set solver.name = "sgd"',
    ),
    "alone, momentum": Wrong(
        (
            *ALONE,
            "train.momentum=0.5",
            "train.momentum_across_rounds=global",
        ),
        'algorithm.name = "singlenet" with train.momentum_across_rounds =',
        "nothing is averaged",
        'set "local"',
    ),
    "unread": Wrong(
        ("privacy.sigma=2.0",),
        "privacy.sigma = 2.0",
        'is read by nothing in this run, of privacy.level = "none" and',
        "leave it out",
    ),
    "weights": Wrong(
        (
            "algorithm.name=fixbn",
            "privacy.level=record",
            "privacy.records=100",
        ),
        'privacy.level = "record" with algorithm.weights = "samples"',
        "weights tell how many records a client has, and let one client",
        'set algorithm.weights = "uniform"',
    ),
    "twice in a sealed sum": Wrong(
        ("algorithm.name=fedavg", "selection.name=random", "selection.replacement=with"),
        'selection.replacement = "with" with exchange.encrypt = ["model"]',
        "one that counts most often is nearly all of a sealed total",
        'set selection.replacement = "without", or exchange.encrypt = "none"',
    ),
    "twice in a sum": Wrong(
        (
            *CLIENT,
            "algorithm.name=fedavg",
            "exchange.encrypt=none",
            "selection.name=random",
            "selection.replacement=with",
        ),
        'privacy.level = "client" with selection.replacement = "with"',
        "a client could count twice in a sum, and a round have fewer",
        'set selection.replacement = "without"',
    ),
    "records mixed": Wrong(
        (*RECORD,),
        'privacy.level = "record" with algorithm.name = "fedtan"',
        "every record's gradient depends on all records of all clients'",
        'algorithm.name = "fixbn" freezes BN and releases its statistics',
    ),
    "epochs": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "algorithm.local_epochs=1",
        ),
        'privacy.level = "record" with algorithm.local_epochs = 1',
        "how many steps a client takes would tell how many records it has",
        "give algorithm.local_steps",
    ),
    "second gradient": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "solver.name=moon",
        ),
        'privacy.level = "record" with solver.name = "moon"',
        "its contrast is a second term, which DP-SGD does not clip",
        "take another solver",
    ),
    "followed refinement": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "solver.name=feddyn",
            "fnr.name=matched",
        ),
        'privacy.level = "record" with solver.name = "feddyn" and fnr.name',
        "the solver follows the refinement, and not through DP-SGD",
        "take another solver",
    ),
    "followed refinement of FedDC": Wrong(
        ("algorithm.name=fixbn", *RECORD, "solver.name=feddc", "fnr.name=matched"),
        'privacy.level = "record" with solver.name = "feddc" and fnr.name',
        "the solver follows the refinement, and not through DP-SGD",
        "take another solver",
    ),
    "bfloat16": Wrong(
        (
            "algorithm.name=fixbn",
            *RECORD,
            "train.precision=bfloat16",
        ),
        'privacy.level = "record" with train.precision = "bfloat16"',
        "norms of gradients would be off by 0.4 %, and a clipped one",
        "leave train.precision out",
    ),
    "no records": Wrong(
        (
            "algorithm.name=fixbn",
            "privacy.level=record",
            "algorithm.weights=uniform",
        ),
        'privacy.level = "record"',
        "needs privacy.records",
        "how many records the smallest client has, a public number, of",
    ),
    "batch": Wrong(
        (
            "algorithm.name=fixbn",
            "privacy.level=record",
            "algorithm.weights=uniform",
            "privacy.records=20",
        ),
        "train.batch_size = 32 with privacy.records = 20",
        "must be below it, so that a sample leaves records out",
        "have a smaller batch",
    ),
    "client measures": Wrong(
        (*CLIENT, "algorithm.name=hbn"),
        'privacy.level = "client" with algorithm.name = "hbn"',
        "clients add up statistics of all their records at each round's start",
    ),
    "client pools": Wrong(
        (*CLIENT,),
        'privacy.level = "client" with algorithm.name = "fedtan"',
        "clients send sums in the middle of a step, each of which would be",
        'take "fixbn" or "fedavg"',
    ),
    "client alone": Wrong(
        (
            *CLIENT,
            *ALONE,
        ),
        'privacy.level = "client" with algorithm.name = "singlenet"',
        "nothing is added up in which a client could hide",
        'take privacy.level = "record"',
    ),
    "ghost": Wrong(
        (
            *CLIENT,
            "algorithm.name=fedavg",
            "privacy.clipping=ghost",
        ),
        'privacy.clipping = "ghost" is of records\' gradients',
        'with privacy.level = "client" take "flat"',
    ),
    "client counts": Wrong(
        (
            *CLIENT,
            "algorithm.name=fedavg",
            "server.name=fednova",
        ),
        'privacy.level = "client" with server.name = "fednova"',
        "the server divides by the clients' steps, which would have noise",
        'take server.name = "average"',
    ),
    "a folder of data that is not there": Wrong(
        ("data.dataset=mnist", "data.root=nowhere"),
        'data.root = "nowhere"',
        "there is no such folder here",
        "make it, with train-images-idx3-ubyte.gz",
    ),
    "no such domain": Wrong(
        ("data.dataset=heart", "data.leave_out=paris"),
        'data.leave_out = "paris"',
        "must be one of cleveland, hungary, switzerland, long-beach",
    ),
    "no such folder of a domain": Wrong(
        ("data.dataset=folders", f"data.root={HERE}", "data.leave_out=paris", "model.name=cnn"),
        'data.leave_out = "paris"',
        "must be one of ",
        "oracles, properties",
    ),
    "all domains left out": Wrong(
        (
            "data.dataset=cifar10-c",
            "data.root=c",
            'data.corruptions=["fog","snow"]',
            "data.leave_out=weather",
        ),
        'data.leave_out = "weather"',
        "leaves nobody to train",
        "have other domains too",
    ),
    "no file of a data set": Wrong(
        ("data.dataset=cifar10-c", "data.root=c", 'data.corruptions=["rain"]'),
        'data.corruptions: "rain"',
        "must be one of gaussian_noise",
        "elastic_transform",
    ),
    "pixels of no pictures": Wrong(
        ("data.side=64",), "data.side = 64", 'goes with data.dataset = "folders"', "leave it out"
    ),
    "severity of nothing": Wrong(
        ("data.severity=5",),
        "data.severity = 5",
        "there is no corruption",
        "set data.corruptions, or leave data.severity out",
    ),
    "a name twice": Wrong(
        ('data.names=["a","b","a"]',), "data.names: 'a'", "twice", "name each once"
    ),
    "another party's name": Wrong(
        ('data.names=["a","server","authority"]',),
        "data.names: 'authority', 'server'",
        "is another party's name",
        "name the client otherwise",
    ),
    "a quorum of more than all": Wrong(
        ("sites.quorum=6",),
        "sites.quorum = 6",
        "there are 5 clients, so no round would ever begin",
        "have a smaller one, or leave it out",
    ),
    "no share of the noise": Wrong(
        (*CLIENT, "algorithm.name=fedavg", "privacy.dropouts=3", "privacy.colluders=2"),
        "privacy.dropouts = 3 and privacy.colluders = 2",
        "of 5 clients in a round: no share of the noise would be left",
        "lower them, or have more clients",
    ),
    "no share of the noise of statistics": Wrong(
        (*RECORD, "algorithm.name=fixbn", "privacy.colluders=5"),
        "privacy.dropouts = 0 and privacy.colluders = 5",
        "of 5 clients in a round: no share of the noise would be left",
        "lower them, or have more clients",
    ),
    "too few clients for encryption": Wrong(
        ("data.clients=2",),
        "data.clients = 2",
        "the authority opens totals of at least exchange.min_clients = 3",
        "have more clients",
    ),
    "too few domains for encryption": Wrong(
        ("data.dataset=digits-by-source", f"data.root={HERE}", "data.leave_out=mnist"),
        'data.dataset = "digits-by-source" of 2 clients that train',
        "the authority opens totals of at least exchange.min_clients = 3",
        "have more clients",
    ),
    "too few selected": Wrong(
        ("algorithm.name=fedavg", "selection.name=random"),
        "selection.fraction = 0.2 of 5 clients are 1 in a round",
        "the authority opens totals of at least exchange.min_clients = 3",
        "select more of them",
    ),
    "a client that there is none of": Wrong(
        (
            "algorithm.name=fedavg",
            "selection.name=fedprof",
            "selection.fraction=1.0",
            "selection.alpha_by_client={eve = 2.0}",
        ),
        "selection.alpha_by_client names eve",
        "the clients are client-1 to client-5",
        "name some of these",
    ),
    "delta": Wrong(
        (*RECORD, "algorithm.name=fixbn", "privacy.delta=0.01"),
        "privacy.delta = 0.01 with 100 records of each of 5 clients",
        "must be below 1 / 500",
    ),
    "releases": Wrong(
        (*RECORD, "algorithm.name=fixbn", "privacy.releases=9", "run.rounds=10"),
        "privacy.releases = 9: up to algorithm.switch, round 5",
        "there are 6 rounds that could begin with one",
        "have fewer releases, or a later switch",
    ),
    "groups that do not divide": Wrong(
        ("algorithm.name=fedavg", "model.name=cnn", "model.norm=group", "model.groups=3"),
        'model.groups = 3 with model.norm = "group"',
        "must divide the 16 channels of the cnn's model.width",
        "take a divisor of 16, or model.width = 18",
    ),
    "a group of one value": Wrong(
        ("algorithm.name=fedavg", "model.norm=instance"),
        'model.norm = "instance" with model.name = "mlp"',
        "one value alone normalises to zero",
        'set model.norm = "batch"',
    ),
    "a batch of one": Wrong(
        ("algorithm.name=fedavg", "fnr.name=matched", "fnr.batch_size=1"),
        "fnr.batch_size = 1",
        "input should be greater than or equal to 2",
    ),
    "bfloat16 of doubles": Wrong(
        ("train.precision=bfloat16", "model.dtype=float64"),
        'train.precision = "bfloat16" with model.dtype = "float64"',
        "autocast leaves doubles as they are",
        'set model.dtype = "float32"',
    ),
    "statistics of a model without": Wrong(
        ("algorithm.name=fedavg", "model.norm=layer", "exchange.encrypt=statistics"),
        'exchange.encrypt = "statistics" with model.norm = "layer"',
        "a model without batch normalisation has none to send",
        'set exchange.encrypt = "none", or "model"',
    ),
    "neither of two kinds": Wrong(
        ("algorithm.name=fixbn", "algorithm.switch=1.5"),
        "algorithm.switch = 1.5",
        "input should be less than 1, or a valid integer, or 'window'",
    ),
    "truth for a number": Wrong(
        ("sites.wait_s=true",), "sites.wait_s = True", "input should be a valid number"
    ),
    "no table": Wrong(
        ("data.quality=[]",), "data.quality = []", "input should be a table, such as {name = value}"
    ),
}
FILES = {
    "no TOML": Wrong((b"[train\n",), ".toml", "not valid TOML", "line 1"),
    "a key twice": Wrong((b"[run]\nseed = 1\nseed = 2\n",), ".toml", "not valid TOML", "line 3"),
    "no UTF-8": Wrong((b"[run]\nname = '\xff'\n",), ".toml", "cannot be read (not UTF-8 text)"),
    "no file": Wrong((None,), ".toml", "cannot be read (No such file or directory)"),
    "too long": Wrong(
        (b"#" * 2**20 + b"\n",), ".toml", "1048577 bytes; such a file has at most 1048576"
    ),
    "too deep": Wrong(
        (b"[run]\nname = " + b"[" * 5000 + b"]" * 5000,), ".toml", "nested more than"
    ),
    "too many values": Wrong((b"\n" * 30_000,), ".toml", "30000 commas and lines", "20000 at most"),
    "a value for a table": Wrong((b"train = 3\n",), "train is a table", "write train.key = value"),
    "a value for a choice": Wrong(
        (b"solver = 3\n",), "solver is a table", "write solver.key = value"
    ),
    "an unknown table": Wrong(
        (b"[trian]\nlr = 1.0\n",), "trian: no such key", "did you mean train?"
    ),
    "a base class of ours": Wrong(
        (b'[solver]\nname = "securefl.settings.axes:SolverChoice"\n',),
        'solver.name = "securefl.settings.axes:SolverChoice"',
        "is none that this table takes",
        "derive its class from securefl.Solver",
    ),
    "code": Wrong(
        (b'[solver]\nname = "unseen:Mine"\n',),
        'solver.name = "unseen:Mine"',
        "is code of this installation, which the settings would run here",
        "allow it with securefl --code unseen:Mine",
    ),
}
"""The same in files, by their content; None for a file that is not there."""
