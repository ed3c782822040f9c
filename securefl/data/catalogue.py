"""Data sets by the name that settings use: a line each, read without torch and without readers.

A new data set is a file with its reader, and a line in `DATA_SETS`.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set's reader, and the traits that the rules of settings ask for."""

    reader: str
    """`module:function`, given the table `[data]` and a seed. It returns a `Split`; of a data set
    that comes by domain, `Domains`."""
    domains: str = ""
    """`module:function`, given the table `[data]`. It returns each domain's family and reads no
    samples. Empty where a partition deals the samples to clients."""
    files: str = ""
    """Content of the folder `data.root`; empty where the data set needs none."""
    origin: str = "need no files"
    """Reason why the data set needs no `data.root`, as it follows the data set's name."""
    regression: bool = False
    """Flat readings, and numbers to predict from them."""
    reads: frozenset[str] = frozenset()
    """Keys of the table `[data]` that not every data set of its kind reads."""

    @property
    def by_domain(self) -> bool:
        """True where each domain is a client."""
        return bool(self.domains)


_IDX = "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the same of t10k"
_EMNIST = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")

DATA_SETS: dict[str, DataSet] = {
    "digits": DataSet(reader="securefl.data.digits:read_digits", origin="come with scikit-learn"),
    "mnist": DataSet(reader="securefl.data.mnist:read_mnist", files=_IDX),
    "fashion-mnist": DataSet(reader="securefl.data.mnist:read_fashion_mnist", files=_IDX),
    **{
        f"emnist-{split}": DataSet(
            reader="securefl.data.mnist:read_emnist", files="EMNIST's gzip.zip, unpacked"
        )
        for split in _EMNIST
    },
    "cifar10": DataSet(
        reader="securefl.data.cifar:read_cifar10", files="cifar-10-binary.tar.gz, unpacked"
    ),
    "cifar100": DataSet(
        reader="securefl.data.cifar:read_cifar100", files="cifar-100-binary.tar.gz, unpacked"
    ),
    "gas-turbine": DataSet(
        reader="securefl.data.gas_turbine:read_gas_turbine",
        files="gt_2011.csv to gt_2015.csv of UCI's Gas Turbine CO and NOx Emission Data Set",
        regression=True,
    ),
    "cifar10-c": DataSet(
        reader="securefl.data.cifar:read_cifar10_c",
        domains="securefl.data.cifar:cifar10_c_families",
        files="CIFAR-10-C.tar, unpacked",
        reads=frozenset({"corruptions"}),
    ),
    "folders": DataSet(
        reader="securefl.data.folders:read_folders",
        domains="securefl.data.folders:folder_families",
        files="a folder per domain, in it a folder per class, in it the pictures",
    ),
    "camelyon17": DataSet(
        reader="securefl.data.folders:read_camelyon17",
        domains="securefl.data.folders:camelyon17_families",
        files="metadata.csv and patches/ of Camelyon17-WILDS",
        reads=frozenset({"n_per_center"}),
    ),
}


def names_by_domain() -> Iterator[str]:
    """Yield the names of the data sets that come by domain."""
    return (name for name, data_set in DATA_SETS.items() if data_set.by_domain)
