"""A model's profile of a client's data: FedProf's RP(θ, D), in one pass (Wu et al., Eq. (2)).

Tensor names end with their axes: B batch, Q representation elements.

Profiles of many clients' data, whose samples share forward passes of the same model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from securefl.data.samples import BATCH, Samples, TensorSamples, in_order
from securefl.errors import DataError
from securefl.exchange.profile_match import Profile

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


@dataclass(frozen=True, slots=True)
class View:
    """The model and the layer by which all clients of a round profile their data."""

    model: nn.Module
    """With the global tensors loaded."""
    layer: str | None
    """Dotted name of the layer; `default_layer` where None."""
    version: int
    """Version of the global model."""
    unit: float
    """Unit of profiles, which the server has published."""


def profile(
    model: nn.Module, layer: str | None, batches: Iterable[Tensor], version: int
) -> Profile:
    """Return mean and biased variance of each representation element over all samples.

    A dense layer's elements are its outputs, before any activation; those of a convolution or a
    residual block are its channels, each summed over the image. Batches may differ in size. The
    model runs in evaluation mode and without gradients, and is left as it was. Moments are merged
    in float64 about running means, so that they keep their digits far from 0.

    Args:
        model: with the global tensors loaded.
        layer: by its dotted name; `default_layer` where None.
        batches: inputs x, without their labels.
        version: of the global model.

    Raises:
        DataError: no such layer, one that does not run exactly once in a forward pass, an output
            that is neither (B, q) nor (B, q, H, W), a value that is not finite, or no sample.
    """
    with representing(model, layer) as represented:
        return merged_profile((represented(x) for x in batches), View(model, layer, version, 1.0))


def merged_profile(batches: Iterable[Float64[Tensor, "B Q"]], view: View) -> Profile:
    """Return the `profile` of data that `representing` has represented, in the view's unit."""
    name = default_layer(view.model) if view.layer is None else view.layer
    total: _Moments | None = None
    for values_BQ in batches:
        batch = _moments(name, values_BQ)
        total = batch if total is None else total.merged(batch)
    if total is None:
        raise DataError(f"layer {name!r} has nothing to profile: the data hold no batch")
    own = Profile(total.mean_Q.cpu(), (total.squares_Q / total.n).cpu(), view.version)
    return own.in_unit(view.unit)


def profile_length(model: nn.Module, layer: str | None, x: Tensor) -> int:
    """Return q, the number of representation elements, found by running the model on inputs x.

    Raises:
        DataError: as in `profile`.
    """
    with representing(model, layer) as represented:
        return represented(x).shape[1]


def default_layer(model: nn.Module) -> str:
    """Return the layer that is profiled where none is named.

    The first dense layer where there is one besides the classifier; else the last block, which is
    the module around the last convolution, or that convolution where it stands in no block; else
    the only dense layer. The paper does not say which layer; behind an activation, profiles would
    exclude too many clients.

    Raises:
        DataError: the model has neither a dense layer nor a convolution over images.
    """
    dense: list[str] = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)]
    convolutions = [n for n, module in model.named_modules() if isinstance(module, _CONVOLUTIONS)]
    if len(dense) > 1 or (dense and not convolutions):
        return dense[0]
    if not convolutions:
        raise DataError(
            f"the model ({type(model).__name__}) has no dense layer, and no convolution over "
            "images, to profile: name a layer, one of " + _names(model)
        )
    return _block_around(model, convolutions[-1])


def _block_around(model: nn.Module, convolution: str) -> str:
    """Return the innermost module around it: no container, and not the classifier's."""
    parts = convolution.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        module = model.get_submodule(name)
        if any(isinstance(inner, nn.Linear) for inner in module.modules()):
            break
        if not isinstance(module, _CONTAINERS):
            return name
    return convolution


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    n: int
    mean_Q: Float64[Tensor, " Q"]
    squares_Q: Float64[Tensor, " Q"]
    """Σ (x - mean)²"""

    def merged(self, other: "_Moments") -> "_Moments":
        """Return the moments of both together (Chan, Golub & LeVeque, 1983)."""
        n = self.n + other.n
        apart_Q = other.mean_Q - self.mean_Q
        return _Moments(
            n,
            self.mean_Q + apart_Q * (other.n / n),
            self.squares_Q + other.squares_Q + apart_Q.square() * (self.n * other.n / n),
        )


def _moments(name: str, values_BQ: Float64[Tensor, "B Q"]) -> _Moments:
    mean_Q = values_BQ.mean(dim=0)
    squares_Q = (values_BQ - mean_Q).square().sum(dim=0)
    if not squares_Q.isfinite().all():
        raise DataError(
            f"layer {name!r} gives values that are not finite: clean the data of NaN and "
            "infinity, or take a model that has not diverged"
        )
    return _Moments(len(values_BQ), mean_Q, squares_Q)


@contextmanager
def representing(
    model: nn.Module, layer: str | None
) -> Iterator[Callable[[Tensor], Float64[Tensor, "B Q"]]]:
    """Yield the layer's representation of inputs x, as `profile` takes moments of it.

    Raises:
        DataError: as in `profile`, but for values that are not finite.
    """
    name = default_layer(model) if layer is None else layer
    with _observed(model, name) as seen:
        yield lambda x: _representation(model, name, x, seen)


@contextmanager
def _observed(model: nn.Module, name: str) -> Iterator[list[Any]]:
    """Note the layer's outputs inside the context, with the model in evaluation mode."""
    layers = dict(model.named_modules())
    if name not in layers:
        raise DataError(f"layer {name!r}: no such layer; the model has {_names(model)}")
    training = [(module, module.training) for module in model.modules()]
    seen: list[Any] = []
    # Copied, as an activation that works in place comes next.
    handle = layers[name].register_forward_hook(
        lambda _layer, _inputs, y: seen.append(y.clone() if isinstance(y, Tensor) else y)
    )
    try:
        model.eval()
        with torch.no_grad():
            yield seen
    finally:
        handle.remove()
        for module, mode in training:
            module.training = mode


def _representation(
    model: nn.Module, name: str, x: Tensor, seen: list[Any]
) -> Float64[Tensor, "B Q"]:
    device = next((parameter.device for parameter in model.parameters()), x.device)
    seen.clear()
    model(x.to(device))
    if len(seen) != 1:
        raise DataError(
            f"layer {name!r} ran {len(seen)} times in one forward pass: name a layer that runs once"
        )
    (y,) = seen
    fits = isinstance(y, Tensor) and y.is_floating_point() and y.dim() in {2, 4}
    if not fits or len(y) != len(x) or not y.numel():
        found = tuple(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise DataError(
            f"layer {name!r} gives {found} for {len(x)} samples: must be (B, q) or (B, q, H, W) "
            "numbers; name a dense layer, a convolution or a residual block"
        )
    values: Tensor = y.double()
    return values.sum(dim=(2, 3)) if y.dim() == 4 else values


def _names(model: nn.Module) -> str:
    return ", ".join(name for name, _ in model.named_modules() if name) or "none"


Represent = Callable[[Tensor], Tensor]
_TOLERANCE = 1e-3
"""Share of a representation's largest value: far above rounding in single precision."""


def profiles(view: View, data: Mapping[str, Samples]) -> dict[str, Profile | DataError]:
    """Return each client's `profile` in the view's unit, or why it has none.

    Clients of less than a batch share a pass, unless a first try of it shows that the model looks
    at several samples at once.

    Raises:
        DataError: the layer cannot be profiled, whosever data it sees.
    """
    found: dict[str, Profile | DataError] = {}
    with representing(view.model, view.layer) as represented:
        shared = _by_sample(represented, data)
        for names in _groups(data) if shared else ([name] for name in data):
            for name, batches in _values(represented, {name: data[name] for name in names}):
                try:
                    found[name] = merged_profile(batches, view)
                except DataError as error:
                    found[name] = error
    return found


def _values(
    represented: Represent, data: Mapping[str, Samples]
) -> Iterator[tuple[str, Iterable[Tensor]]]:
    """Yield representations of clients' samples, in batches; of several clients in one pass."""
    if len(data) > 1:
        x_by_client = [_x(of) for of in data.values()]
        with suppress(DataError):  # which of them it is for shows in passes of their own
            rows = represented(torch.cat(x_by_client)).split([len(x) for x in x_by_client])
            yield from zip(data, ([values_BQ] for values_BQ in rows), strict=True)
            return
    for name, of in data.items():
        yield name, (represented(x) for x, _ in in_order(of))


def _x(of: Samples) -> Tensor:
    return of.take(torch.arange(len(of)))[0]


def _groups(data: Mapping[str, Samples]) -> Iterator[Sequence[str]]:
    """Yield clients of samples alike, in order, with at most a batch together, or one with more."""
    names, n, kind = list[str](), 0, None
    for name, of in data.items():
        own = (of.x.dtype, of.x.shape[1:]) if isinstance(of, TensorSamples) else None
        if names and (own is None or own != kind or n + len(of) > BATCH):
            yield names
            names, n = [], 0
        names, n, kind = [*names, name], n + len(of), own
    if names:
        yield names


def _by_sample(represented: Represent, data: Mapping[str, Samples]) -> bool:
    """Return True where samples of one client are represented together as each is alone."""
    for of in data.values():
        x, _ = of.take(torch.arange(2))
        if x.is_floating_point():  # larger ones beside, for who divides by the largest
            noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
            x = torch.cat([x, 2 * x.flip(0) + noise])
        with suppress(DataError):
            both, alone = represented(x), torch.cat([represented(one) for one in x.split(1)])
            # Those that are alike would show nothing.
            if torch.isfinite(alone).all() and not torch.equal(alone[0], alone[1]):
                return bool((both - alone).abs().max() <= _TOLERANCE * alone.abs().max())
    return False
