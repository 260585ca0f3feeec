"""Torch twin of `mmrubric.advantage.masked_standardize`, for values that live on the device (token
rewards)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrubric.advantage.standardize import check_options
from mmrubric.errors import InputError


def masked_standardize(
    values: Tensor,
    mask: Tensor | None = None,
    axes: int | tuple[int, ...] | None = None,
    ddof: int = 1,
    eps: float = 1e-6,
    tol: float = 1e-6,
) -> Tensor:
    """(x - mean) / (std + eps) over the known values of `axes`, as the numpy function does.

    Slices whose known values differ by at most `tol`, or that know fewer than two, are exactly 0: decided
    before any division, because a tiny std turns rounding noise into advantages. 0 outside the mask and at
    NaN.

    Args:
        values: any float shape; NaN = unknown.
        mask: broadcastable to `values`; True = take part. NaN never takes part.
        axes: axes to normalise over; None = all.
        ddof: 1 for sample axes, 0 for token axes.
        eps: added to the standard deviation, >= 0.
        tol: largest spread that counts as a tie, >= 0.

    Returns:
        The shape of `values`; float64 for float64 input, else float32. Computed in float64.

    Raises:
        InputError: infinite values or a bad option.
    """
    check_options(ddof, eps, tol)
    dims = tuple(range(values.ndim)) if axes is None else axes
    known = ~torch.isnan(values) if mask is None else ~torch.isnan(values) & mask.bool()
    if bool((torch.isinf(values) & known).any()):
        raise InputError("masked_standardize: values hold infinity; use NaN for unknown")
    x = torch.where(known, values.double(), 0.0)
    count = known.sum(dims, keepdim=True)
    deviation = torch.where(known, x - x.sum(dims, keepdim=True) / count.clamp(min=1), 0.0)
    high = torch.where(known, x, -torch.inf).amax(dims, keepdim=True)
    low = torch.where(known, x, torch.inf).amin(dims, keepdim=True)
    signal = (count >= 2) & (high - low > tol)
    std = (deviation.square().sum(dims, keepdim=True) / (count - ddof).clamp(min=1)).sqrt()
    scaled = torch.where(known & signal, deviation / (std + eps), 0.0)
    return scaled.to(torch.float64 if values.dtype == torch.float64 else torch.float32)
