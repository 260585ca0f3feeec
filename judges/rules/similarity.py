"""How alike two pictures are: PSNR, SSIM and a perceptual hash. Pure functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from judges.rules.view import grey
from mmrubric.errors import InputError

SSIM_SIGMA = 1.5
SSIM_RADIUS = 5
"""The 11 x 11 Gaussian window of the SSIM paper."""
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_HASH_SIDE, _HASH_LOW = 32, 8
HASH_BITS = _HASH_LOW**2


def psnr(a: np.ndarray, b: np.ndarray, where: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB over the pixels `where`; infinity when they are equal.

    Args:
        a, b: uint8 [H, W, 3].
        where: bool [H, W], with at least one True.
    """
    error = float(np.mean((a[where].astype(np.float64) - b[where]) ** 2))
    return float("inf") if error == 0 else float(10 * np.log10(255.0**2 / error))


def ssim_map(a: np.ndarray, b: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Structural similarity of every pixel `where`, NaN elsewhere: mean over the channels, float64 [H, W].

    Local moments under a Gaussian window (sigma 1.5, 11 x 11) over the pixels `where` alone, so that what lies
    outside cannot leak in; K1 = 0.01, K2 = 0.03, range 255. Values lie in [-1, 1].

    Args:
        a, b: uint8 [H, W, 3].
        where: bool [H, W].

    Source: Wang et al., Image quality assessment, IEEE TIP 13 (2004), eq. 13; the restriction is ours.
    """
    share = _window(where.astype(np.float64))

    def mean(values: np.ndarray) -> np.ndarray:
        total = _window(np.where(where, values, 0.0))
        return np.divide(total, share, out=np.full(where.shape, np.nan), where=where)

    channels = [_ssim(a[..., c].astype(np.float64), b[..., c].astype(np.float64), mean) for c in range(a.shape[2])]
    return np.mean(channels, axis=0)


def _ssim(x: np.ndarray, y: np.ndarray, mean: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    mean_x, mean_y = mean(x), mean(y)
    var_x = mean(x * x) - mean_x**2
    var_y = mean(y * y) - mean_y**2
    covariance = mean(x * y) - mean_x * mean_y
    alike = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    return alike / ((mean_x**2 + mean_y**2 + _C1) * (var_x + var_y + _C2))


def _window(values: np.ndarray) -> np.ndarray:
    from scipy import ndimage

    return np.asarray(ndimage.gaussian_filter(values, SSIM_SIGMA, mode="constant", radius=SSIM_RADIUS))


def mean_ssim(a: np.ndarray, b: np.ndarray, where: np.ndarray) -> float:
    """Mean of `ssim_map` over the pixels `where` whose window lies in the picture; NaN when there is none.

    Without a mask (all True) this is the published index of each channel, averaged.
    """
    inner = np.zeros(where.shape, dtype=bool)
    inner[SSIM_RADIUS:-SSIM_RADIUS, SSIM_RADIUS:-SSIM_RADIUS] = True
    centres = where & inner
    return float(ssim_map(a, b, where)[centres].mean()) if centres.any() else float("nan")


def perceptual_hash(picture: Image.Image) -> str:
    """64-bit hash (16 hex digits) of what a picture looks like; near-equal pictures differ in few bits.

    The signs of the 8 x 8 lowest DCT-II coefficients of the luma at 32 x 32 pixels against their median
    (pHash, Zauner 2010). Scaling, compression and small changes of light keep it; mirroring does not.

    Args:
        picture: mode RGB, as `images.normalize` gives it.
    """
    from scipy import fft

    small = grey(picture.resize((_HASH_SIDE, _HASH_SIDE), Image.Resampling.LANCZOS))
    low = np.asarray(fft.dctn(small, norm="ortho"))[:_HASH_LOW, :_HASH_LOW]
    # Rounding takes the noise out of coefficients that are zero, so that flat pictures have one hash.
    low = np.round(low, 3)
    bits = (low > np.median(low)).ravel()
    return np.packbits(bits).tobytes().hex()


def hash_distance(a: str, b: str) -> int:
    """Number of bits, 0 to 64, in which two perceptual hashes differ.

    Raises:
        InputError: a hash is not 16 hex digits.
    """
    return (_bits(a) ^ _bits(b)).bit_count()


def _bits(digest: str) -> int:
    try:
        if len(digest) == HASH_BITS // 4:
            return int(digest, 16)
    except ValueError:
        pass
    raise InputError(f"{digest!r} is no perceptual hash: 16 hex digits, from judges.rules.perceptual_hash(picture)")
