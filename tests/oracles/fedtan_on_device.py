"""Rounds of FedTAN with ResNet-20, in a process that a test can give up on.

    python fedtan_on_device.py DEVICE ENGINE

Prints the loss after them.
"""

from __future__ import annotations

import sys

from by_hand import task
from on_device import trained


def main(device, engine):
    job = task("resnet20", sizes=(8, 9, 10, 11, 12), width=16)
    run = trained(device, job, "algorithm.name=fedtan", f"run.engine={engine}", "run.rounds=2")
    sys.stdout.write(f"{run.metrics[-1].loss}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
