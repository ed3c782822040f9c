"""Records that a server reads in one total of five clients by a crafted model, in the clear or not.

python benchmarks/crafted_models.py

Each client sends the gradient of one batch in a network of one hidden layer, 1,024 units. *Imprint*
(Fowl et al., ICLR 2022): all units look along one direction and open one after the other. *Traps*
(Boenisch et al., EuroS&P 2023): units that look anywhere and open for few records each. A record
counts as read where it is met within 1 % of a column's standard deviation, on average.

Beside it what a client could look at before it trains: the share of units whose rows are those of
another, the share of those nearly parallel to another (a cosine beyond 0.99), the share of units
that are open on its own batch, on average. `--honest` has the extremes of honest runs, by round.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

import securefl
from securefl.build.simulation import simulated
from securefl.network.flat_layers import varied
from securefl.types import Kind

N_CLIENTS, WIDTH, NEAR, LEAST_ROWS = 5, 1024, 0.99, 8


@dataclass(frozen=True, slots=True)
class Hidden:
    """First layer of a model, and whether the server subtracts neighbouring units."""

    weight_UD: Tensor
    bias_U: Tensor
    crafted: int
    """Number of units that are crafted, the first ones."""
    neighbours: bool


def imprint(public_ND: Tensor, rng: torch.Generator, noise: float, crafted: int = WIDTH) -> Hidden:
    """Return units along one direction, each row with noise of that relative length."""
    drawn_UD = torch.randn(WIDTH, public_ND.shape[1], generator=rng) / public_ND.shape[1] ** 0.5
    along_D = nn.functional.normalize(torch.randn(public_ND.shape[1], generator=rng), dim=0)
    weight_UD = drawn_UD.clone()
    weight_UD[:crafted] = along_D + noise * drawn_UD[:crafted]
    levels = torch.linspace(0.0005, 0.9995, crafted)
    bias_U = torch.zeros(WIDTH)
    outputs_NU = public_ND @ weight_UD[:crafted].T
    bias_U[:crafted] = -torch.stack(
        [torch.quantile(outputs_NU[:, unit], levels[unit]) for unit in range(crafted)]
    )
    return Hidden(weight_UD, bias_U, crafted, neighbours=True)


def traps(public_ND: Tensor, rng: torch.Generator, rate: float, crafted: int = WIDTH) -> Hidden:
    """Return units that open for this share of records each."""
    weight_UD = torch.randn(WIDTH, public_ND.shape[1], generator=rng) / public_ND.shape[1] ** 0.5
    bias_U = torch.zeros(WIDTH)
    bias_U[:crafted] = -torch.quantile(public_ND @ weight_UD[:crafted].T, 1 - rate, dim=0)
    return Hidden(weight_UD, bias_U, crafted, neighbours=False)


def drawn(public_ND: Tensor, rng: torch.Generator) -> Hidden:
    """Return an honest first layer, as PyTorch draws it."""
    bound = public_ND.shape[1] ** -0.5
    weight_UD = (2 * torch.rand(WIDTH, public_ND.shape[1], generator=rng) - 1) * bound
    return Hidden(weight_UD, (2 * torch.rand(WIDTH, generator=rng) - 1) * bound, WIDTH, False)


CRAFTED: dict[str, Callable[[Tensor, torch.Generator], Hidden]] = {
    "none, an honest first model": drawn,
    "imprint": lambda x, rng: imprint(x, rng, 0.0),
    "imprint, rows with noise of 0.0001 %": lambda x, rng: imprint(x, rng, 1e-6),
    "imprint, 1 %": lambda x, rng: imprint(x, rng, 0.01),
    "imprint, 10 %": lambda x, rng: imprint(x, rng, 0.1),
    "imprint, 30 %": lambda x, rng: imprint(x, rng, 0.3),
    "imprint in 49 % of units, 0.1 %": lambda x, rng: imprint(x, rng, 1e-3, 49 * WIDTH // 100),
    "traps for 1 record in 160": lambda x, rng: traps(x, rng, 1 / 160),
    "traps for 1 in 20": lambda x, rng: traps(x, rng, 1 / 20),
    "traps for 1 in 160, in 49 % of units": lambda x, rng: traps(
        x, rng, 1 / 160, 49 * WIDTH // 100
    ),
}


def samples(name: str) -> tuple[Tensor, Tensor]:
    """Return inputs, columns in units that a site would have them in, and labels."""
    data = load_breast_cancer() if name == "breast cancer" else load_digits()
    x, y = torch.tensor(data.data).float(), torch.tensor(data.target).long()
    x = (x - x.mean(0)) / x.std(0) if name == "breast cancer" else x / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], y[order]


def read(hidden: Hidden, x: Tensor, y: Tensor, rng: torch.Generator) -> int:
    """Return how many of these records the mean gradient of all clients shows."""
    weight, bias = (of.clone().requires_grad_() for of in (hidden.weight_UD, hidden.bias_U))
    shape = int(y.max()) + 1, 1 if hidden.neighbours else WIDTH
    last = (torch.randn(shape, generator=rng) * 1e-3).expand(-1, WIDTH)
    nn.functional.cross_entropy(torch.relu(x @ weight.T + bias) @ last.T, y).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    by_unit, by_bias = weight.grad[: hidden.crafted].double(), bias.grad[: hidden.crafted].double()
    if hidden.neighbours:
        by_unit, by_bias = by_unit[:-1] - by_unit[1:], by_bias[:-1] - by_bias[1:]
    told = by_bias.abs() > 1e-9
    deviation = x.double().std(0).clamp(min=1e-6)
    found = by_unit[told] / by_bias[told, None] / deviation
    error = torch.cdist(found, x.double() / deviation).min(0).values / x.shape[1] ** 0.5
    return int((error < 0.01).sum())


def signs(hidden: Hidden, own_ND: Tensor | None) -> tuple[float, float, float]:
    """Return the shares of equal rows, of nearly parallel rows, and of open units; 1 unknown."""
    equal = 1 - len(torch.unique(hidden.weight_UD, dim=0)) / len(hidden.weight_UD)
    rows_UD = nn.functional.normalize(hidden.weight_UD.double(), dim=1)
    cosine_UU = (rows_UD @ rows_UD.T).fill_diagonal_(0).abs()
    near = float((cosine_UU.max(1).values > NEAR).double().mean())
    if own_ND is None:
        return equal, near, 1.0
    is_open = own_ND @ hidden.weight_UD.T + hidden.bias_U > 0
    return equal, near, float(is_open.double().mean())


HONEST = {
    ("breast cancer", rate, decay): [f"train.lr={rate}", f"train.weight_decay={decay}"]
    for rate in (0.1, 0.5, 2.0)
    for decay in (0.0, 0.001, 0.01, 0.02, 0.05)
} | {
    ("digits", rate, decay): [f"train.lr={rate}", f"train.weight_decay={decay}"]
    for rate, decay in ((0.1, 0.0), (0.5, 0.01), (0.5, 0.05), (1.0, 0.0))
}
"""Settings of honest runs, by data, rate and weight decay."""


def task() -> securefl.Task:
    """Return five clients with 90 records of breast cancer each, and a network for them."""
    x, y = samples("breast cancer")
    torch.manual_seed(0)
    hidden = nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()
    clients = [(x[at : at + 90], y[at : at + 90]) for at in range(0, 450, 90)]
    return securefl.Task(nn.Sequential(*hidden, nn.Linear(32, 2)), clients, (x[450:], y[450:]))


def honest(about: tuple[str, float, float], rounds: int) -> tuple[int, float, float, float]:
    """Return the number of flat layers, the extremes of `signs` in a run, of all layers."""
    usual = ["algorithm.name=fedavg", "exchange.encrypt=none", f"run.rounds={rounds}"]
    config = securefl.load_config(settings=[*usual, *HONEST[about]])
    run = simulated(config, task() if about[0] == "breast cancer" else None)
    names, flat, shares = varied(run.state), set[str](), list[tuple[float, float, float]]()
    x, _ = samples(about[0])
    while not run.complete:
        run.step()
        layers = run.state.tensors[Kind.PARAMETERS]
        flat |= names - varied(run.state)
        for name, rows in layers.items():
            if rows.dim() == 2 and len(rows) >= LEAST_ROWS:
                first = rows.shape[1] == x.shape[1]  # else its inputs are not the records
                bias = layers[name.replace("weight", "bias")]
                equal, near, is_open = signs(
                    Hidden(rows, bias, 0, False), x[:64] if first else None
                )
                shares.append((equal, near, is_open))
    run.close()
    equals, nears, opens = (sorted(share[i] for share in shares) for i in range(3))
    return len(flat), equals[-1], nears[-1], opens[0]


def print_honest(rounds: int) -> None:
    """Print a row for each honest run, in Markdown."""
    sys.stdout.write("| data | rate | weight decay | flat | equal rows | near rows | open |\n")
    sys.stdout.write("| --- | --: | --: | --: | --: | --: | --: |\n")
    for about in HONEST:
        flat, *shares = honest(about, rounds)
        words = " | ".join(f"{100 * share:.0f} %" for share in shares)
        sys.stdout.write("| {} | {} | {} |".format(*about) + f" {flat} | {words} |\n")
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each data set and model, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, nargs="+", default=[8, 32], metavar="RECORDS")
    parser.add_argument("--honest", type=int, default=0, metavar="ROUNDS")
    args = parser.parse_args(argv)
    if args.honest:
        return print_honest(args.honest)
    each = args.each
    ways = " | ".join(f"read of {N_CLIENTS} × {n}" for n in each)
    sys.stdout.write(f"| data | crafted | {ways} | equal rows | near rows | open |\n")
    sys.stdout.write(f"| --- | --- |{' --: |' * (len(each) + 3)}\n")
    for name in ("breast cancer", "digits"):
        x, y = samples(name)
        for words, make in CRAFTED.items():
            rng = torch.Generator().manual_seed(1)
            hidden = make(x[-250:], rng)
            counts = [read(hidden, x[: N_CLIENTS * n], y[: N_CLIENTS * n], rng) for n in each]
            seen = " | ".join(f"{n_read}" for n_read in counts)
            shares = " | ".join(f"{100 * share:.0f} %" for share in signs(hidden, x[: each[-1]]))
            sys.stdout.write(f"| {name} | {words} | {seen} | {shares} |\n")
    return None


if __name__ == "__main__":
    main()
