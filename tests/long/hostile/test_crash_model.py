"""A power cut leaves everything that was synced, and of the rest any part that is legal."""

from __future__ import annotations

import errno

from tests.long.hostile.disk.crash_model import JOURNAL, POSIX, WORST, Directory
from tests.long.hostile.disk.shim import Entry

PAGE = 4096
OLD, NEW = b"o" * PAGE, b"n" * PAGE

Files = dict[str, bytes]


def call(
    kind: str, name: str = "", inode: int = 1, at: int = 0, data: bytes = b"", thread: int = 1
) -> Entry:
    return Entry(kind, 1, thread, inode, at, name, data)


def sync(name: str, inode: int = 1, error: int = 0) -> list[Entry]:
    return [call("B", name, inode), call("E", name, inode, error)]


CREATED = [call("C", "a"), *sync(".", 9)]
WRITTEN = [*CREATED, call("W", "a", data=OLD * 2), *sync("a")]


def states(calls: list[Entry], system: str = POSIX) -> list[Files]:
    """Return the different states after some calls."""
    directory = Directory()
    for each in calls:
        directory.apply(each)
    found: list[Files] = []
    for name in directory.names():
        if name.startswith(system):
            state = directory.state(name)
            files = {each: state.read(each) for each in state.sizes}
            if files not in found:
                found.append(files)
    return found


def contents(calls: list[Entry], system: str = POSIX) -> set[bytes | None]:
    """Return the contents that the file "a" may have; `None` is none."""
    return {files.get("a") for files in states(calls, system)}


def test_what_was_synced_is_there() -> None:
    assert states(WRITTEN) == states(WRITTEN, JOURNAL) == [{"a": OLD * 2}]


def test_what_was_not_synced_may_be_missing() -> None:
    assert contents([*CREATED, call("W", "a", data=b"data")]) == {b"", b"data", bytes(4)}


def test_each_page_may_be_missing_by_itself() -> None:
    found = contents([*WRITTEN, call("W", "a", data=NEW * 2)])
    assert found == {OLD + OLD, OLD + NEW, NEW + OLD, NEW + NEW}


def test_a_page_may_have_any_content_that_it_has_had() -> None:
    writes = [call("W", "a", data=bytes([each]) * PAGE) for each in b"xyz"]
    found = contents([*WRITTEN, *writes])
    assert {content[:1] for content in found if content} == {b"o", b"x", b"y", b"z"}


def test_a_sync_covers_nothing_that_was_written_after_it_began() -> None:
    calls = [call("B", "a"), call("W", "a", data=NEW), call("E", "a")]
    assert contents([*WRITTEN, *calls]) == {OLD + OLD, NEW + OLD}


def test_no_later_sync_covers_what_a_failed_one_gave_up() -> None:
    failed = [*WRITTEN, call("W", "a", data=NEW), *sync("a", error=errno.EIO), *sync("a")]
    assert contents(failed) == {OLD + OLD, NEW + OLD}
    assert contents([*failed, call("W", "a", data=NEW), *sync("a")]) == {NEW + OLD}


def test_a_file_is_shorter_or_not() -> None:
    shorter = [*WRITTEN, call("T", "a", at=10)]
    assert contents(shorter) == contents(shorter, JOURNAL) == {OLD * 2, OLD[:10]}
    assert contents([*shorter, *sync("a")]) == {OLD[:10]}


def test_later_pages_imply_that_a_file_was_made_shorter() -> None:
    calls = [*WRITTEN, call("T", "a", at=0), call("W", "a", data=NEW)]
    assert contents(calls) == contents(calls, JOURNAL) == {OLD * 2, b"", bytes(PAGE), NEW}


def test_a_name_is_there_once_its_directory_was_synced() -> None:
    created = [call("C", "a"), call("C", "b", 2)]
    assert states([*created, *sync(".", 9)]) == [{"a": b"", "b": b""}]
    assert len(states(created)) == 4
    assert states(created, JOURNAL) == [{}, {"a": b"", "b": b""}, {"a": b""}]


def test_only_a_journal_covers_the_name_of_a_new_file_with_its_sync() -> None:
    created = [call("C", "a"), call("C", "b", 2), *sync("a")]
    assert {} in states(created)
    assert states(created, JOURNAL) == [{"a": b""}, {"a": b"", "b": b""}]


def test_a_removed_file_is_there_with_what_was_synced_or_it_is_not() -> None:
    removed = [*WRITTEN, call("U", "a")]
    assert contents(removed) == contents(removed, JOURNAL) == {OLD * 2, None}
    assert contents([*removed, *sync(".", 9)]) == {None}


def test_a_file_is_moved_whole() -> None:
    moved = [*WRITTEN, call("R", "a", data=b"b")]
    for system in (POSIX, JOURNAL):
        found = states(moved, system)
        assert {"a": OLD * 2} in found
        assert {"b": OLD * 2} in found
        assert len(found) == 2


def test_a_new_file_with_the_inode_of_a_removed_one_is_another_file() -> None:
    calls = [*WRITTEN, call("U", "a"), call("C", "a"), call("W", "a", data=NEW), *sync("a")]
    assert contents(calls) == {OLD * 2, None, NEW}
    assert contents(calls, JOURNAL) == {NEW}


def test_the_worst_state_has_nothing_that_need_not_be_there() -> None:
    directory = Directory()
    for each in [*WRITTEN, call("W", "a", data=NEW), call("C", "b", 2)]:
        directory.apply(each)
    state = directory.state(WORST)
    assert [*state.sizes] == ["a"]
    assert state.read("a") == OLD * 2
