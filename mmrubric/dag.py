"""Order of things that depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def topological_order(parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Names so that every parent stands before its children, else in the order given.

    Args:
        parents: name to the names it depends on; every name is a key.

    Raises:
        ValueError: the dependencies have a cycle; the message shows it.
    """
    order: dict[str, None] = {}
    for root in parents:
        # The stack is the path from root to the name at hand. It is explicit, because a chain of a thousand
        # names must not exhaust Python's recursion.
        path = [root]
        while path:
            open_ = [name for name in parents[path[-1]] if name not in order]
            if path[-1] in order or not open_:
                order.setdefault(path.pop())
            elif open_[0] in path:
                raise ValueError(f"a cycle: {' -> '.join([*path[path.index(open_[0]) :], open_[0]])}")
            else:
                path.append(open_[0])
    return list(order)
