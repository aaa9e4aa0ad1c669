"""A Gaussian process over points of a space, in numpy and scipy only.

Matern 5/2 kernel with one length per knob, trend zero on standardized values, hyperparameters by
maximum a posteriori (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
chapters 2, 4 and 5). The prior of the lengths grows with the number of knobs (Hvarfner et al.,
"Vanilla Bayesian Optimization Performs Great in High Dimensions", 2024), which keeps the model
calm while trials are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Floats = NDArray[np.float64]

_JITTER = 1e-6
_ROOT5 = math.sqrt(5.0)
#: Mean and spread of the logarithm of the noise's variance, values having variance 1.
_NOISE = (math.log(3e-3), 1.5)
_SIGNAL = (0.0, 0.7)
_LENGTH_SPREAD = 0.6
#: Steps of the search for hyperparameters per fit. It starts where the last fit ended.
STEPS = 15


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean and standard deviation per candidate, in the units of the given values."""

    mean: Floats
    std: Floats


class GaussianProcess:
    """Fit with ``fit``, then ask ``posterior``. ``gaps`` are ``Encoder.gaps``."""

    def __init__(self, knobs: int) -> None:
        middle = 0.5 * math.log(max(knobs, 1)) - 0.7  # one length per knob, calmer with more knobs
        self._prior_mean = np.array([middle] * knobs + [_SIGNAL[0], _NOISE[0]])
        self._prior_std = np.array([_LENGTH_SPREAD] * knobs + [_SIGNAL[1], _NOISE[1]])
        self._theta = self._prior_mean.copy()

    def fit(self, gaps: Floats, values: Floats, steps: int = STEPS) -> None:
        """Fit to n values; ``gaps`` has shape (knobs, n, n). ``steps`` = 0 keeps the lengths."""
        self._mean = float(values.mean())
        self._scale = float(values.std()) or 1.0
        standard = (values - self._mean) / self._scale
        if steps:
            self._theta = self._improved(gaps, standard, steps)
        kernel = self._kernel(gaps)
        noise = math.exp(self._theta[-1]) + _JITTER
        self._lower = np.linalg.cholesky(kernel + noise * np.eye(len(kernel)))
        self._weights = cho_solve((self._lower, True), standard)

    def posterior(self, gaps: Floats) -> Posterior:
        """Return the noise-free posterior; ``gaps`` has shape (knobs, candidates, n)."""
        kernel = self._kernel(gaps)
        mean = kernel @ self._weights
        half = solve_triangular(self._lower, kernel.T, lower=True)
        variance = math.exp(self._theta[-2]) - (half**2).sum(axis=0)
        std = np.sqrt(np.maximum(variance, 1e-10))
        return Posterior(self._mean + self._scale * mean, self._scale * std)

    @property
    def noise_std(self) -> float:
        """Standard deviation of one measurement, in the units of the given values."""
        return self._scale * math.sqrt(math.exp(self._theta[-1]) + _JITTER)

    def _improved(self, gaps: Floats, standard: Floats, steps: int) -> Floats:
        """Return hyperparameters after some steps of Rprop (Riedmiller and Braun, 1993).

        It needs only the signs of the gradient. Scipy's L-BFGS-B does the same in fewer steps, but
        calls threaded BLAS on tiny matrices, which took 20 times as long on a loaded machine.
        """
        theta, pace = self._theta.copy(), np.full(len(self._theta), 0.2)
        best, least, before = theta, math.inf, np.zeros(len(theta))
        for _ in range(steps):
            loss, gradient = self._loss(theta, gaps, standard)
            if loss < least:
                best, least = theta.copy(), loss
            turned = np.sign(gradient) * np.sign(before)
            pace = np.clip(pace * np.where(turned > 0, 1.3, np.where(turned < 0, 0.5, 1)), 0.01, 1)
            before = gradient
            theta = theta - pace * np.sign(gradient)
            theta = np.clip(theta, self._prior_mean - 4.0, self._prior_mean + 4.0)
        return best

    def _kernel(self, gaps: Floats) -> Floats:
        squared = np.tensordot(np.exp(-2.0 * self._theta[:-2]), gaps, axes=1)
        r = _ROOT5 * np.sqrt(squared)
        return np.asarray(math.exp(self._theta[-2]) * (1 + r + r**2 / 3) * np.exp(-r))

    def _loss(self, theta: Floats, gaps: Floats, standard: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of the hyperparameters, and its gradient."""
        shrink = np.exp(-2.0 * theta[:-2])
        r = _ROOT5 * np.sqrt(np.tensordot(shrink, gaps, axes=1))
        signal, noise, decay = math.exp(theta[-2]), math.exp(theta[-1]), np.exp(-r)
        kernel = signal * (1 + r + r**2 / 3) * decay
        full = kernel + (noise + _JITTER) * np.eye(len(kernel))
        factor = cho_factor(full, lower=True)
        weights = cho_solve(factor, standard)
        loss = 0.5 * standard @ weights + np.log(np.diag(factor[0])).sum()
        outer = np.outer(weights, weights) - cho_solve(factor, np.eye(len(full)))
        # d kernel / d log length = signal * 5/3 (1 + r) exp(-r) * gap / length^2
        shared = outer * (signal * 5.0 / 3.0 * (1 + r) * decay)
        lengths = -0.5 * np.tensordot(gaps, shared, axes=2) * shrink
        tail = [-0.5 * (outer * kernel).sum(), -0.5 * noise * np.trace(outer)]
        off = (theta - self._prior_mean) / self._prior_std
        gradient = np.concatenate([lengths, tail]) + off / self._prior_std
        return float(loss + 0.5 * off @ off), gradient
