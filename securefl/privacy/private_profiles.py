"""Profile of a client by the Gaussian mechanism: no record of the client shows in it.

Tensor names end with their axes: V values of a sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from securefl.algorithms.profiling import View, representing
from securefl.errors import DataError
from securefl.exchange.profile_match import Profile
from securefl.privacy.randomness import Randomness, noisy
from securefl.privacy.record_moments import ChannelMoments, MomentRelease


@final
@dataclass(frozen=True, slots=True)
class PrivateProfiler:
    """Maker of profiles from clipped sums with noise; each is one release with σ = `sigma`.

    The client adds all of the noise by itself, since its profile is of nobody else. Each profiled
    element is a channel, and records are clipped as they are in the published unit. A profile that
    is refused for its noise is a release as well.
    """

    rms_clip: float
    sigma: float

    def __call__(self, view: View, batches: Iterable[Tensor], randomness: Randomness) -> Profile:
        """Return the profile in the view's unit; variances are at least what noise leaves readable.

        Raises:
            DataError: as in `profile`, but for values that are not finite: their records count
                nothing; or the profile has drowned in its noise.
        """
        total_V: Tensor | None = None
        with representing(view.model, view.layer) as represented:
            for x in batches:
                values_BQ = represented(x) / view.unit
                release = MomentRelease(values_BQ.shape[1], self.rms_clip, self.sigma)
                reference = ChannelMoments.standard(release.n_channels)
                sum_V = release.sum_of(values_BQ, reference)
                total_V = sum_V if total_V is None else total_V + sum_V
        if total_V is None:
            raise DataError("there is nothing to profile: the data hold no batch")
        noisy_V = noisy(total_V.cpu(), randomness, release.deviation)
        found = release.moments_of(noisy_V, reference, release.deviation)
        return Profile(found.mean_C, found.var_C, view.version)
