"""Data sets' standard files, of a handful of random images each."""

from __future__ import annotations

import gzip
import struct

import nibabel
import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)
COLUMNS = ",patient,node,x_coord,y_coord,tumor,slide,center,split"


def idx(array):
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def bytes_of(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def write_mnist(root, parts=("train", "t10k"), labels=(3, 1, 2), suffix="", n_images=3):
    """Write so many images and labels for each part; return the pixels by part."""
    root.mkdir(exist_ok=True, parents=True)
    pack = gzip.compress if suffix else bytes
    images = {part: bytes_of(n_images, 28, 28) for part in parts}
    for part in parts:
        (root / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images[part])))
        (root / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels)))
    return images


def write_cifar10(root):
    """Write two records per file; return all of them, test file last."""
    root.mkdir(exist_ok=True, parents=True)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    records = [np.hstack([RNG.integers(0, 10, (2, 1)), bytes_of(2, 3072)]) for _ in names]
    for name, two in zip(names, records, strict=True):
        (root / name).write_bytes(two.astype(np.uint8).tobytes())
    return np.concatenate(records)


def write_cifar100(root):
    """Write ten training records and two for testing."""
    root.mkdir(exist_ok=True, parents=True)
    for name, n in (("train.bin", 10), ("test.bin", 2)):
        records = [bytes([19, 90 + i]) + bytes_of(3072).tobytes() for i in range(n)]
        (root / name).write_bytes(b"".join(records))


def write_cifar10_c(root, names=("fog",), labels=(4, 7)):
    """Write as many images per severity as labels; return the last file's pixels."""
    root.mkdir(exist_ok=True, parents=True)
    for name in names:
        images = bytes_of(5 * len(labels), 32, 32, 3)
        np.save(root / f"{name}.npy", images)
    np.save(root / "labels.npy", np.tile(np.array(labels, dtype=np.uint8), 5))
    return images


def write_picture(path, colour, size=(12, 10)):
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new("RGB", size, colour).save(path)


def write_camelyon(root, centers=(3, 0, 3, 0)):
    lines = [COLUMNS]
    for i, center in enumerate(centers):
        lines.append(f"{i},004,2,{32 * i},64,{i % 2},0,{center},0")
        name = f"patch_patient_004_node_2_x_{32 * i}_y_64.png"
        write_picture(root / "patches/patient_004_node_2" / name, (50 * i % 256, 0, 0))
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")


def write_medmnist(root, name, n_channels, labels, **changes):
    """Write as many images as labels for each of the three parts; return the arrays."""
    root.mkdir(exist_ok=True, parents=True)
    shape = (28, 28) if n_channels == 1 else (28, 28, n_channels)
    arrays = {f"{part}_images": bytes_of(len(labels), *shape) for part in ("train", "val", "test")}
    arrays |= {
        f"{part}_labels": np.array(labels, dtype=np.uint8)[:, None]
        for part in ("train", "val", "test")
    }
    np.savez_compressed(root / f"{name}.npz", **(arrays | changes))
    return arrays


ONE_TO_TEST = ("train", "train", "test", "train")


def write_isic2019(root, centers=(0, 5), colour=(200, 0, 0), folds=ONE_TO_TEST):
    """Write a photograph of each fold for each centre."""
    lines = ["image,MEL,NV,target,center,fold,fold2"]
    for i, center in enumerate(centers):
        for j, fold in enumerate(folds):
            name = f"ISIC_00{i}{j}_downsampled"
            lines.append(f"{name},1.0,0.0,{(i + j) % 2},{center},{fold},{fold}_{center}")
            folder = root / "ISIC_2019_Training_Input_preprocessed"
            write_picture(folder / f"{name}.jpg", colour, (24, 16))
    (root / "train_test_split").write_text("\n".join(lines) + "\n")


def write_ixi_tiny(root, sides=(8, 6, 5)):
    """Write two people to train on and two to test on for each hospital; return voxels by name."""
    people = [f"IXI{i:03d}-{('Guys', 'HH', 'IOP')[i % 3]}-0828" for i in range(12)]
    lines, written = ["Patient ID,Manufacturer,Split"], {}
    for i, name in enumerate(people):
        image = RNG.normal(100 + 10 * i, 20, sides).astype(np.float32)
        written[name] = image, (image > 100 + 10 * i).astype(np.uint8)
        for folder, kind, voxels in zip(
            ("T1", "label"), ("image", "label"), written[name], strict=True
        ):
            path = root / "IXI_sample" / name / folder / f"{name}_{kind}.nii.gz"
            path.parent.mkdir(exist_ok=True, parents=True)
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), path)
        lines.append(f"{int(name[3:6])},{i % 3},{'test' if i >= 6 else 'train'}")
    (root / "metadata_tiny.csv").write_text("\n".join(lines))
    return written
