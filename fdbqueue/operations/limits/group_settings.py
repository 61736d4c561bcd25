"""The stored settings of groups: of each one, and of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fdbqueue.layout.items import GroupSettings, decode_group_settings
from fdbqueue.layout.keys import Layout
from fdbqueue.types import ReadTransaction


def begin_settings(
    reads: ReadTransaction, layout: Layout, groups: Iterable[str]
) -> Callable[[], dict[str, GroupSettings]]:
    """Start to read the settings of some groups; return a function that waits for them."""
    key, space = layout.group_key, layout.group_settings
    own = {group: reads[key(space, group)] for group in groups}
    for_all = reads[key(space, None)] if own else None

    def finish() -> dict[str, GroupSettings]:
        default = decode_group_settings(None if for_all is None else for_all.value)
        return {
            group: decode_group_settings(each.value).over(default) for group, each in own.items()
        }

    return finish


def read_settings(reads: ReadTransaction, layout: Layout, group: str) -> GroupSettings:
    """Return the settings of a group."""
    return begin_settings(reads, layout, [group])()[group]
