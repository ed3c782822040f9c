"""SGD whose step is one kernel takes the steps of torch's own, however gradients lie in memory."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from securefl.algorithms.algorithm import Sgd
from securefl.algorithms.federated import _sgd
from securefl.algorithms.local_sgd import local_sgd
from securefl.algorithms.solvers.solver import Start


def noise(rng, *shape):
    """In double precision, as it lies in memory by default."""
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def sparse(rng):
    """Of two rows of seven."""
    return torch.sparse_coo_tensor([[1, 4]], noise(rng, 2, 3), (7, 3), check_invariants=True)


def parameters():
    """The first lies channels last."""
    rng = torch.Generator().manual_seed(0)
    image = noise(rng, 8, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    others = [noise(rng, *shape) for shape in ((5, 6), (7, 3), (4,))]
    return [nn.Parameter(value) for value in (image, *others)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_steps_as_torchs_own_does(momentum):
    """Also along sparse gradients, in other layouts, and where a parameter is reached late."""
    rng = torch.Generator().manual_seed(1)
    ours, theirs = parameters(), parameters()
    one = local_sgd(ours, Sgd(0.1, momentum))
    other = torch.optim.SGD(theirs, lr=0.1, momentum=momentum)
    for step in range(4):
        late = noise(rng, 4) if step >= 2 else None
        gradients = [noise(rng, 8, 4, 3, 3), noise(rng, 6, 5).t(), sparse(rng), late]
        for of in (ours, theirs):
            for parameter, gradient in zip(of, gradients, strict=True):
                parameter.grad = gradient
        one.step()
        other.step()
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shorter_floats_step_too(dtype):
    """Of torch 2.13 the kernel leaves them as they are."""
    ours, theirs = (nn.Parameter(torch.ones(20, 16, dtype=dtype)) for _ in range(2))
    one, other = local_sgd([ours], Sgd(0.5, 0.9)), torch.optim.SGD([theirs], lr=0.5, momentum=0.9)
    for _ in range(2):
        ours.grad = theirs.grad = torch.full_like(ours, 0.25)
        one.step()
        other.step()
    assert torch.equal(ours, theirs)
    assert float(ours.detach().max()) < 1


def test_a_parameter_with_gaps_steps_as_torchs_own_does():
    """What lies between its values is not its own."""
    whole = torch.arange(12.0).view(3, 4)
    parameter = nn.Parameter(whole[:, ::2])
    parameter.grad = torch.ones(3, 2)
    local_sgd([parameter], Sgd(0.5)).step()
    assert whole.flatten().tolist() == [x - 0.5 if x % 2 == 0 else x for x in range(12)]


def test_a_rounds_buffers_lie_as_their_parameters():
    """Those that come from the state or a client's state lie as they were sent."""
    (image, *_), rng = parameters(), torch.Generator().manual_seed(2)
    kept = noise(rng, 8, 4, 3, 3)
    start = Start(SimpleNamespace(sgd=Sgd(0.1, momentum=0.9)), {"image": image}, {}, {})
    buffer = _sgd(start, {"image": kept}).state[image]["momentum_buffer"]
    assert buffer.stride() == image.stride() != kept.stride()
    assert torch.equal(buffer, kept)


def test_a_momentum_buffer_goes_on():
    """V ← 0.5 · 4 + (1 + 1 · 1) and w ← 1 - 0.5 v, in the buffer that was given."""
    parameter, buffer = nn.Parameter(torch.ones(3)), torch.full((3,), 4.0)
    optimiser = local_sgd([parameter], Sgd(0.5, momentum=0.5, weight_decay=1.0))
    optimiser.state[parameter]["momentum_buffer"] = buffer
    parameter.grad = torch.ones(3)
    optimiser.step()
    assert buffer.tolist() == [4.0] * 3
    assert parameter.tolist() == [-1.0] * 3
