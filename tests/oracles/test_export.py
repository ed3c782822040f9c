"""Exported models: outputs where SecureFL cannot be imported, against those that a run scores."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import securefl
from securefl.errors import ConfigError, DataError, RunFolderError
from securefl.evaluation.evaluate import UntrainedStatistics
from securefl.evaluation.own_part import own_part
from securefl.export.formats import FORMATS
from securefl.export.model_file import encoded, plain_torch
from securefl.io.tensors import read_tensors
from securefl.models.fixup import FixupBlock, ScalarMultiplier
from securefl.models.layers import (
    batch_norm_2d,
    batch_norm_3d,
    group_norm,
    instance_norm,
    layer_norm,
)
from securefl.models.resnet import BasicBlock
from securefl.models.unet import unet
from securefl.norms.grouped import InstanceNorm
from securefl.norms.weight_standardization import scaled, standardise_weights

WITHOUT_SECUREFL = """
import sys
sys.modules["securefl"] = None
import numpy, onnxruntime, torch
for name in sys.argv[1:]:
    x = torch.from_numpy(numpy.load(name + ".x.npy"))
    numpy.save(name + ".pt2.npy", torch.export.load(name + ".pt2").module()(x).numpy())
    session = onnxruntime.InferenceSession(name + ".onnx", providers=["CPUExecutionProvider"])
    numpy.save(name + ".onnx.npy", session.run(None, {"x": x.numpy()})[0])
"""


def _images():
    """Return a model with every kind of layer that shipped models of images have."""
    convolutions = [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)]
    standardise_weights([("first", convolutions[0])])
    standardise_weights([("second", convolutions[1])], scaled)
    hidden = BasicBlock(batch_norm_2d, 3, 4, 2), FixupBlock(4, 4, 1), *convolutions
    norms = group_norm(2)(4), instance_norm(4), layer_norm(4), nn.ReLU()
    return nn.Sequential(*hidden, *norms, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


MODELS = {
    "images": (_images, (3, 16, 16)),
    "volumes": (lambda: unet(batch_norm_3d, 1, 2, 2), (1, 5, 4, 4)),
}


def _used(model):
    """Return the model with statistics and parameters that are none that it began with."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


def test_whole_models_give_the_same_outputs_in_plain_torch_and_onnx_runtime(tmp_path):
    """Of every kind of layer that a shipped model has, for a number of samples of one's own."""
    expected = {}
    for name, (made, shape) in MODELS.items():
        used = _used(made())
        x = torch.rand(5, *shape, generator=torch.Generator().manual_seed(1))
        np.save(tmp_path / f"{name}.x.npy", x.numpy())
        expected[name] = used(x).detach().numpy()
        for form in ("torch-export", "onnx"):
            content = FORMATS[form].encode(plain_torch(used), x[:2])
            (tmp_path / f"{name}{FORMATS[form].suffix}").write_bytes(content)
    command = [sys.executable, "-c", WITHOUT_SECUREFL, *MODELS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, outputs in expected.items():
        assert np.abs(outputs).max() > 0.01
        for suffix in ("pt2", "onnx"):
            found = np.load(tmp_path / f"{name}.{suffix}.npy")
            # Of the largest: another kernel of ONNX Runtime rounds the U-Net's 10 by 2e-5.
            largest = np.abs(outputs).max()
            np.testing.assert_allclose(found, outputs, rtol=1e-5, atol=1e-5 * largest)


def test_standardised_weights_are_in_plain_layers_of_the_same_names():
    used, x = _used(_images()), torch.rand(2, 3, 16, 16)
    plain = plain_torch(used)
    assert {type(layer) for layer in plain.modules() if hasattr(layer, "weight")} == {
        *(nn.BatchNorm2d, nn.Conv2d, nn.GroupNorm, nn.Linear, ScalarMultiplier, InstanceNorm),
    }
    assert plain.state_dict().keys() == used.state_dict().keys()
    torch.testing.assert_close(plain(x), used(x), rtol=0, atol=0)
    assert type(used[2]) is not nn.Conv2d


@pytest.fixture(scope="module")
def fedbn(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "fedbn"
    settings = ["run.rounds=1", 'algorithm.name="fedbn"', "exchange.encrypt=[]"]
    return securefl.run(securefl.load_config(settings=settings), out=out), out


def test_a_clients_own_model_is_exported_from_result_and_folder(fedbn, tmp_path):
    result, folder = fedbn
    mine = result.client_models["client-2"].eval()
    for i, run in enumerate((result, folder)):
        path = securefl.export_model(run, tmp_path / f"{i}.safetensors", client="client-2")
        found = read_tensors(path)
        assert all(torch.equal(found[n], v) for n, v in mine.state_dict().items())
        assert any(not torch.equal(found[n], v) for n, v in result.model.state_dict().items())
    with pytest.raises(ConfigError, match=r"nothing of a client 'nobody'.*client-1, client-2"):
        securefl.export_model(folder, tmp_path / "x.pt", client="nobody")
    with pytest.warns(UntrainedStatistics):
        path = securefl.export_model(folder, tmp_path / "global.pt")
    assert torch.load(path, weights_only=True).keys() == mine.state_dict().keys()


def test_an_own_part_of_another_model_is_refused(fedbn):
    _, folder = fedbn
    own = own_part(folder, "client-1")
    name = next(iter(own))
    for other in ({"x": own[name]}, {name: own[name].double()}):
        with pytest.raises(RunFolderError, match="a tensor of another model"):
            securefl.load_trained(folder, own=other)


def test_no_file_is_lost_and_no_form_guessed(fedbn, tmp_path):
    result, _ = fedbn
    (tmp_path / "there.pt").write_text("mine")
    with pytest.raises(ConfigError, match=r"there\.pt: is there already"):
        securefl.export_model(result, tmp_path / "there.pt", client="client-1")
    assert (tmp_path / "there.pt").read_text() == "mine"
    with pytest.raises(ConfigError, match=r"its ending says no format.*torch-export \(\.pt2\)"):
        securefl.export_model(result, tmp_path / "model.bin", client="client-1")
    with pytest.raises(ConfigError, match="cannot be written"):
        securefl.export_model(result, tmp_path / "nowhere" / "a.pt", client="client-1")


class Branching(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :10] * (2 if x.sum() > 0 else 1)


def test_a_model_that_cannot_be_traced_says_what_can_be_done():
    with pytest.raises(DataError, match="safetensors and state-dict need no tracing"):
        encoded(FORMATS["torch-export"], Branching(), torch.rand(2, 3, 4, 4))
