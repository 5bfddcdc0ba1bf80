"""What CUDA's caching allocator reserves for a list of allocations and frees.

The rules are those of torch 2.13, `c10/cuda/CUDACachingAllocator.cpp` (`round_size`, `get_allocation_size`,
`get_free_block`, `should_split`, `alloc_found_block`, `free_block`, `try_merge_blocks`), without its options: sizes are
rounded up to 512 bytes; blocks of at most 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments of
20 MiB, larger ones get segments of their own in multiples of 2 MiB; the smallest free block of the same stream and
class that is large enough is taken, and its rest is given back where it is worth it; a free block is joined with free
neighbours of its segment. Segments stay reserved until the device is full. `expandable_segments` lets the one segment
of a stream and class grow in place, in pages of 2 MiB or 20 MiB.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable
from dataclasses import dataclass, field

ROUNDING = 512
SMALL_BLOCK, SMALL_SEGMENT = 1 << 20, 2 << 20
SHARED_BLOCK, SHARED_SEGMENT = 10 << 20, 20 << 20
LARGE_ROUNDING = 2 << 20
# No two segments touch: blocks of neighbouring segments are never joined.
_GAP = 1 << 40

Pool = tuple[Hashable, bool]


class DeviceFullError(MemoryError):
    """The device is full, also after every segment without a used block was given back."""


@dataclass(slots=True, eq=False)
class Block:
    """A used or free piece of a segment; `before` and `after` are its neighbours there."""

    address: int
    size: int
    pool: Pool
    used: bool = False
    before: Block | None = None
    after: Block | None = None

    def __lt__(self, other: Block) -> bool:
        """The order in which free blocks are looked through: by size, then by address."""
        return (self.size, self.address) < (other.size, other.address)


@dataclass
class CachingAllocator:
    """State of one device's allocator; all sizes are bytes.

    `allocated` is the sum of used blocks, rounding included, `reserved` that of segments. `capacity` of None is a
    device that is never full.
    """

    capacity: int | None = None
    expandable: bool = False
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    _free: dict[Pool, list[Block]] = field(default_factory=dict)
    _used: dict[Hashable, Block] = field(default_factory=dict)
    _last: dict[Pool, Block] = field(default_factory=dict)
    _next_address: int = 0

    def allocate(self, key: Hashable, nbytes: int, stream: Hashable = 0) -> None:
        """Takes a block for `nbytes` (above 0) on a stream; `key` names it in `free`.

        Raises:
            DeviceFullError: there is no room, and none can be made.
        """
        size = max(ROUNDING, -(-nbytes // ROUNDING) * ROUNDING)
        pool = (stream, size <= SMALL_BLOCK)
        block = self._found(pool, size) or self._segment(pool, size)
        self._split(block, size)
        block.used = True
        self._used[key] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def free(self, key: Hashable) -> None:
        """Gives the block of that key back to its stream. Raises KeyError where there is none."""
        block = self._used.pop(key)
        block.used = False
        self.allocated -= block.size
        self._put(self._joined(block))

    def _found(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block that is large enough, taken out of the free ones."""
        free = self._free.setdefault(pool, [])
        place = bisect.bisect_left(free, Block(-1, size, pool))
        return free.pop(place) if place < len(free) else None

    def _segment(self, pool: Pool, size: int) -> Block:
        """A block of new memory that is large enough."""
        page = SMALL_SEGMENT if pool[1] else SHARED_SEGMENT
        if self.expandable:
            return self._grown(pool, size, page)
        rounded = page if pool[1] or size < SHARED_BLOCK else -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        self._reserve(rounded)
        block = Block(self._next_address, rounded, pool)
        self._next_address += rounded + _GAP
        return block

    def _grown(self, pool: Pool, size: int, page: int) -> Block:
        """The end of the pool's one segment, with as many pages mapped behind it as are missing."""
        last = self._last.get(pool)
        tail = last if last is not None and not last.used else None
        missing = -(-(size - (tail.size if tail else 0)) // page) * page
        self._reserve(missing)
        if tail is not None:
            self._take(tail)
            tail.size += missing
            return tail
        end = 0 if last is None else last.address + last.size
        block = Block(end, missing, pool, before=last)
        if last is not None:
            last.after = block
        self._last[pool] = block
        return block

    def _reserve(self, nbytes: int) -> None:
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            self._release_unused()
            if self.reserved + nbytes > self.capacity:
                raise DeviceFullError(f"{nbytes:,} bytes more than {self.reserved:,} of {self.capacity:,} do not fit")
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _release_unused(self) -> None:
        """Gives the segments without a used block back to the device."""
        for pool, blocks in self._free.items():
            whole = [block for block in blocks if block.before is None and block.after is None]
            self._free[pool] = [block for block in blocks if block.before is not None or block.after is not None]
            self.reserved -= sum(block.size for block in whole)
            if any(self._last.get(pool) is block for block in whole):
                del self._last[pool]

    def _split(self, block: Block, size: int) -> None:
        """Cuts the block to the size where the rest is worth keeping, and gives the rest back."""
        rest = block.size - size
        if not (rest >= ROUNDING if block.pool[1] or self.expandable else rest > SMALL_BLOCK):
            return
        behind = Block(block.address + size, rest, block.pool, before=block, after=block.after)
        if block.after is not None:
            block.after.before = behind
        if self._last.get(block.pool) is block:
            self._last[block.pool] = behind
        block.after, block.size = behind, size
        self._put(behind)

    def _joined(self, block: Block) -> Block:
        """The block together with its free neighbours."""
        before, after = block.before, block.after
        if after is not None and not after.used:
            self._take(after)
            self._absorb(block, after)
        if before is not None and not before.used:
            self._take(before)
            self._absorb(before, block)
            return before
        return block

    def _absorb(self, block: Block, behind: Block) -> None:
        block.size += behind.size
        block.after = behind.after
        if behind.after is not None:
            behind.after.before = block
        if self._last.get(block.pool) is behind:
            self._last[block.pool] = block

    def _put(self, block: Block) -> None:
        bisect.insort(self._free.setdefault(block.pool, []), block)

    def _take(self, block: Block) -> None:
        free = self._free[block.pool]
        free.pop(bisect.bisect_left(free, block))

    def add_free(self, address: int, nbytes: int, stream: Hashable = 0, *, small: bool = False) -> None:
        """Puts reserved memory there that no block uses, as a step finds it that was not the first."""
        self._put(Block(address, nbytes, (stream, small)))
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
