"""How the tests share two cores, and what they may not reach."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# Before a test module imports torch, numpy or a hub client. Set, not defaulted: no test uses a network.
os.environ.update(HF_HUB_OFFLINE="1", WANDB_MODE="offline", TOKENIZERS_PARALLELISM="false", MPLBACKEND="Agg")
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


# CI tries the same examples each time, so that a red run is one that somebody can repeat; elsewhere they vary.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


# A lock, because `--dist loadgroup` of pytest-xdist 3.8 silently groups nothing under pytest 9.2. Around the
# whole protocol, because fixtures of a module start processes too; outside the fault handler's clock.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let tests that start processes run one at a time, whichever xdist worker they are on."""
    if item.get_closest_marker("processes") is None:
        return (yield)
    with open(__file__, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first and those that start processes last: so two workers end at about the same time."""
    items.sort(key=_order)


def _order(item: pytest.Item) -> int:
    if item.get_closest_marker("processes"):
        return 2
    return 0 if item.get_closest_marker("slow") else 1
