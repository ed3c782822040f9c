"""Encryption of all of ResNet-20, 271098 values in 133 ciphertexts, against plain float32."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import (
    Cost,
    Machine,
    Matrix,
    Way,
    bytes_text,
    ms_text,
    one_sum,
    ratio_text,
    sample_weights,
    show,
    typical,
    write_json,
)
from sealed_way import PlainWay, SealedWay

from securefl.algorithms.algorithm import averaged_tensors
from securefl.crypto.params import SUMS
from securefl.exchange.layout import pack
from securefl.exchange.plain import PlainChannel
from securefl.models.build import build_model


@dataclass(frozen=True, slots=True)
class ModelSum:
    """One sum of whole models, in the clear and encrypted."""

    n_clients: int
    n_values: int
    n_ciphertexts: int
    plain: Cost
    encrypted: Cost


def models(n_clients: int, rng: np.random.Generator) -> Matrix:
    """Return the initial ResNet-20 with a training step's worth of noise at each client."""
    model = build_model("resnet20", "batch", in_channels=3, n_features=3072, n_classes=10)
    named = {name: t for group in averaged_tensors(model).values() for name, t in group.items()}
    values = pack("model", named, SUMS.max_value)
    return values + rng.normal(scale=0.01, size=(n_clients, len(values)))


def compare(n_clients: int, repeats: int) -> ModelSum:
    """Measure in the clear and encrypted in turn, `repeats` times."""
    rng = np.random.default_rng(n_clients)
    values_KV, weight_K = models(n_clients, rng), sample_weights(n_clients, rng)
    n_values = values_KV.shape[1]
    ways: Mapping[str, Way] = {
        "plain": PlainWay(PlainChannel("float32"), n_values),
        "encrypted": SealedWay(n_values, n_clients),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            costs[name].append(one_sum(way, values_KV, weight_K))
    return ModelSum(
        n_clients,
        n_values,
        SUMS.n_ciphertexts(n_values),
        typical(costs["plain"]),
        typical(costs["encrypted"]),
    )


def show_sum(result: ModelSum) -> None:
    """Print a row for each cost, with its ratio to the clear."""

    def row(name: str, plain: float, encrypted: float, texts: tuple[str, str]) -> list[str]:
        return [name, *texts, ratio_text(encrypted, plain)]

    plain, encrypted = result.plain, result.encrypted
    sizes = {
        "bytes per client": (plain.client_bytes, encrypted.client_bytes),
        "bytes at the server": (plain.server_bytes, encrypted.server_bytes),
    }
    times = {
        "client: seal": (plain.client_s, encrypted.client_s),
        "server: add": (plain.server_s, encrypted.server_s),
        "authority: open": (plain.authority_s, encrypted.authority_s),
    }
    rows = [row(name, p, e, (bytes_text(p), bytes_text(e))) for name, (p, e) in sizes.items()]
    rows += [row(name, p, e, (ms_text(p), ms_text(e))) for name, (p, e) in times.items()]
    errors = plain.max_error, encrypted.max_error
    rows.append(row("largest error", *errors, (f"{errors[0]:.1e}", f"{errors[1]:.1e}")))
    show(
        f"ResNet-20, {result.n_values} values, {result.n_ciphertexts} ciphertexts, "
        f"{result.n_clients} clients",
        ("", "float32", "encrypted", "ratio"),
        rows,
    )


def main(argv: Sequence[str] | None = None) -> list[ModelSum]:
    """Measure, print, and write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    print(Machine.here())
    results = [compare(args.clients, args.repeats)]
    show_sum(results[0])
    if args.json:
        write_json(args.json, results)
    return results


if __name__ == "__main__":
    main()
