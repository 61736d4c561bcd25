"""The states in which a power cut may leave a directory, given the record of what was done to it.

`Directory` replays a record. After any number of its entries, `state` returns one of the states in
which the disk may be at that moment. The rules:

- What was written to a file before a sync of it began is on disk once that sync has succeeded.
- Any other page of 4,096 bytes has, independently of all others, any content that it has had since.
  The same is true of the size of a file. Where the size is on disk and the data is not, there
  are zeros.
- A file that was made shorter is shorter or not; pages written later imply the former.
- A name was created, moved or removed for certain once its directory was synced. Before that, two
  kinds of file systems differ. `POSIX`: each of these changes is there or not. `JOURNAL`, such as
  ext4: they are there in their order, up to some point, and so are changes that made a file
  shorter; and the sync of a new file also covers its name.
- After a failed sync the system takes the pages for written. So no later sync covers them, unless
  they are written again.

A state is named by a text, such as "journal/but:3", that selects it again in a replay of the same
record.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.long.hostile.disk.shim import Entry

JOURNAL, POSIX = "journal", "posix"
WORST = f"{POSIX}/none"
"""The state in which nothing is on disk that need not be."""

_Versions = list[tuple[int, bytes]] | list[tuple[int, int]]

_PAGE = 4096
_NEVER = -1  # before the first entry


@dataclass
class _File:
    """The contents that a file may have: versions, each with the entry that made it.

    The first version of each list is on disk, later ones may be.
    """

    pages: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=lambda: [(_NEVER, 0)])
    shortened: list[int] = field(default_factory=list)
    uncertain: set[int] = field(default_factory=set)
    """The pages that may have several versions."""
    is_directory: bool = False
    given_up: int = _NEVER
    """The begin of the last sync that failed: no sync covers older versions any more."""

    def write(self, number: int, at: int, data: bytes) -> None:
        end = at + len(data)
        for page in range(at // _PAGE, -(-end // _PAGE)):
            begin = page * _PAGE
            versions = self.pages.setdefault(page, [(_NEVER, b"")])
            old = versions[-1][1].ljust(_PAGE, b"\0")
            first, last = max(at, begin), min(end, begin + _PAGE)
            new = old[: first - begin] + data[first - at : last - at] + old[last - begin :]
            versions.append((number, new))
            self.uncertain.add(page)
        if self.sizes[0][1] < end and self.sizes[-1][0] <= self.given_up:
            self.sizes.append((number, self.sizes[-1][1]))  # the next sync covers it again
        self.reserve(number, end)

    def reserve(self, number: int, size: int) -> None:
        if size > self.sizes[-1][1]:
            self.sizes.append((number, size))

    def resize(self, number: int, size: int) -> None:
        if size < self.sizes[-1][1]:
            self.shortened.append(number)
            for page, versions in self.pages.items():
                kept = versions[-1][1][: max(0, size - page * _PAGE)]
                if kept != versions[-1][1]:
                    versions.append((number, kept))
                    self.uncertain.add(page)
        if size != self.sizes[-1][1]:
            self.sizes.append((number, size))

    def things(self) -> list[_Versions]:
        """Return the versions of each page and of the size."""
        return [*self.pages.values(), self.sizes]

    def sync(self, begin: int) -> None:
        """Take what was there when a sync began for written, now that it has succeeded."""
        shortened = max((number for number in self.shortened if number < begin), default=_NEVER)
        uncertain: list[_Versions] = [self.pages[page] for page in self.uncertain]
        for versions in [*uncertain, self.sizes]:
            last = _last(versions, begin)
            if versions[last][0] <= self.given_up:
                last = _last(versions, shortened)
            del versions[:last]
        self.shortened = [number for number in self.shortened if number > begin]
        self.uncertain = {page for page in self.uncertain if len(self.pages[page]) > 1}


def _last(versions: _Versions, number: int) -> int:
    """Return the index of the version after an entry."""
    return max(0, bisect.bisect_right(versions, number, key=lambda each: each[0]) - 1)


@dataclass
class _Rename:
    """A change of the names of a file: one is removed, or added, or both."""

    number: int
    file: _File
    removed: str | None
    added: str | None
    is_certain: bool = False

    @property
    def directory(self) -> str:
        return str(PurePosixPath(self.added or self.removed or "").parent)


class _Choice:
    """A choice of one version for each thing that has several, the oldest of which is on disk.

    - none, all: the oldest of each, the newest of each
    - names, pages: the newest of the names, or of the pages and sizes; the oldest of the others
    - but:N: the newest of each, but the oldest of thing N
    - before:N: the newest of each, but of thing N the one before it
    - only:N: the oldest of each, but the newest of thing N
    - until:N: of each the newest one after N entries
    - random:N: of each any one
    """

    def __init__(self, text: str) -> None:
        self._kind, _, parameter = text.partition(":")
        self._parameter = int(parameter or 0)
        self.things = 0
        if self._kind == "random":
            self._rng = random.Random(self._parameter)
            # How much of the names and of the pages is new. Journals are written sooner than pages.
            self._new = [self._rng.choice([0.1, 0.5, 0.9, 1]) for _ in range(2)]

    def __call__(self, versions: list[int], is_name: bool = False) -> int:
        """Return the index of the version to take; `versions` has the entries that made them."""
        if len(versions) == 1:
            return 0
        newest = len(versions) - 1
        is_it = self.things == self._parameter
        self.things += 1
        if self._kind == "random":
            if self._rng.random() < self._new[is_name]:
                return newest
            # The system writes pages back after a while, so the last few versions are likely.
            before = newest - 1 - int(self._rng.expovariate(0.3))
            return max(0, before) if self._rng.random() < 0.8 else 0
        if self._kind == "until":
            return max(0, bisect.bisect_right(versions, self._parameter) - 1)
        if self._kind == "before" and is_it:
            return newest - 1
        is_new = {"none": False, "all": True, "but": not is_it, "before": True, "only": is_it}
        is_new |= {"names": is_name, "pages": not is_name}
        return newest if is_new[self._kind] else 0


@dataclass
class State:
    """One state of the directory: sizes and pages of the files by their names."""

    directories: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    pages: dict[str, dict[int, bytes]] = field(default_factory=dict)
    identity: list[object] = field(default_factory=list)
    """Equal states of one record have equal identities."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        content = bytearray(self.sizes[name])
        for page, data in self.pages[name].items():
            content[page * _PAGE : page * _PAGE + len(data)] = data
        return bytes(content[: self.sizes[name]])

    def write(self, path: Path) -> None:
        """Create the files in a new directory."""
        path.mkdir()
        for name in self.directories:
            (path / name).mkdir(parents=True, exist_ok=True)
        for name, size in self.sizes.items():
            with (path / name).open("xb") as file:
                for page, data in self.pages[name].items():
                    file.seek(page * _PAGE)
                    file.write(data[: max(0, size - page * _PAGE)])
                file.truncate(size)


class Directory:
    """What may be on disk of a directory, which was empty before the first entry."""

    def __init__(self) -> None:
        self._number = _NEVER
        self._files: dict[int, _File] = {}  # by inode; a later file may get the same one
        self._renames: list[_Rename] = []
        self._journal = _NEVER  # a journal certainly reaches this entry
        self._syncs: dict[int, int] = {}  # thread and the entry where its sync began

    def apply(self, entry: Entry) -> None:
        """Take the next entry of the record."""
        self._number += 1
        number = self._number
        if entry.kind in "CD":
            file = self._files[entry.inode] = _File(is_directory=entry.kind == "D")
            self._renames.append(_Rename(number, file, None, entry.name))
        elif entry.kind == "B":
            self._syncs[entry.thread] = number
        elif entry.kind == "E":
            begin = self._syncs.pop(entry.thread)
            synced = self._files.get(entry.inode)
            if entry.at:
                if synced is not None:
                    synced.given_up = begin
            elif synced is None or synced.is_directory:
                self._sync_names(entry.name, begin)
            else:
                self._sync_file(synced, begin)
        elif entry.kind != "M":
            file = self._files[entry.inode]
            if entry.name.endswith("-shm") and entry.kind in "WTA":
                pass  # SQLite builds its index anew, so all contents are the same state
            elif entry.kind == "W":
                file.write(number, entry.at, entry.data)
            elif entry.kind == "A":
                file.reserve(number, entry.at)
            elif entry.kind == "T":
                file.resize(number, entry.at)
            elif entry.kind == "U":
                self._renames.append(_Rename(number, file, entry.name, None))
            elif entry.kind == "R":
                self._renames.append(_Rename(number, file, entry.name, entry.data.decode()))

    def _sync_file(self, file: _File, begin: int) -> None:
        changes = [each.number for each in self._renames if each.file is file and not each.removed]
        changes += [number for number in file.shortened if number < begin]
        self._journal = max([self._journal, *changes])
        file.sync(begin)

    def _sync_names(self, directory: str, begin: int) -> None:
        gone = []
        for each in self._renames:
            if each.number < begin and each.directory == directory:
                each.is_certain = True
                self._journal = max(self._journal, each.number)
                if each.added is None:
                    gone.append(each.file)
        self._renames = [each for each in self._renames if not any(each.file is f for f in gone)]
        for file in gone:  # a process may still have it open, but it has no name any more
            file.pages.clear()
            file.uncertain.clear()

    # States

    def names(self) -> Iterator[str]:
        """Yield the names of all states at this moment; several may be the same state."""
        for system in (JOURNAL, POSIX):
            yield from (f"{system}/{each}" for each in ("none", "all", "names", "pages"))
            for kind, others in (("but", "all"), ("before", "all"), ("only", "none")):
                choice = _Choice(others)
                self._choose(system, choice)
                yield from (f"{system}/{kind}:{each}" for each in range(choice.things))
            yield from (f"{system}/until:{each}" for each in self._pending())
            yield from (f"{system}/random:{each}" for each in range(100))

    def state(self, name: str) -> State:
        """Return the state with this name."""
        system, _, choice = name.partition("/")
        return self._choose(system, _Choice(choice))

    def _pending(self) -> list[int]:
        """Return the entries whose effects may be missing."""
        lists = [versions[1:] for each in self._renames for versions in each.file.things()]
        pending = {each[0] for versions in lists for each in versions}
        pending.update(each.number for each in self._renames if not each.is_certain)
        return sorted(pending)

    def _choose(self, system: str, choose: _Choice) -> State:
        journal = self._choose_journal(choose) if system == JOURNAL else None
        names: dict[str, _Rename] = {}
        for each in self._renames:
            if journal is not None:
                is_there = each.number <= journal
            else:
                is_there = each.is_certain or choose([_NEVER, each.number], True) == 1
            if not is_there:
                continue
            if each.removed in names and names[each.removed].file is each.file:
                del names[each.removed]
            if each.added is not None:
                names[each.added] = each
        state = State()
        for name, each in sorted(names.items()):
            if str(PurePosixPath(name).parent) not in (".", *state.directories):
                continue  # the directory is missing
            if each.file.is_directory:
                state.directories.append(name)
            else:
                state.identity.append((name, each.number))
                self._choose_content(state, name, each.file, journal, choose)
        return state

    def _choose_journal(self, choose: _Choice) -> int:
        """Return the entry up to which the journal is on disk."""
        later = {each.number for each in self._renames if each.number > self._journal}
        for each in self._renames:
            later.update(number for number in each.file.shortened if number > self._journal)
        points = [self._journal, *sorted(later)]
        return points[choose(points, True)]

    def _choose_content(
        self, state: State, name: str, file: _File, journal: int | None, choose: _Choice
    ) -> None:
        shortened = [_NEVER, *file.shortened]
        if journal is None:
            epoch = choose(shortened, True)
        else:
            epoch = max(0, bisect.bisect_right(shortened, journal) - 1)
        begin = shortened[epoch]
        end = shortened[epoch + 1] if epoch + 1 < len(shortened) else self._number + 1

        def version(versions: _Versions) -> int:
            first, behind = _last(versions, begin), _last(versions, end - 1) + 1
            return first + choose([each[0] for each in versions[first:behind]])

        number, size = file.sizes[version(file.sizes)]
        pages: dict[int, bytes] = {}
        made_by = [number]
        for page, versions in sorted(file.pages.items()):
            number, data = versions[version(versions)]
            if data and page * _PAGE < size:
                pages[page] = data
                made_by.append(number)
        state.sizes[name] = size
        state.pages[name] = pages
        state.identity.append(tuple(made_by))
