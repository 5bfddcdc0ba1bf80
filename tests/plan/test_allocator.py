from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.plan.footprint.allocator import CachingAllocator, DeviceFullError

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        # The rest of a large segment is kept in the block where it is 1 MiB or less.
        (11 * MIB, 12 * MIB, 12 * MIB),
        (21 * MIB, 22 * MIB, 22 * MIB),
    ],
)
def test_a_first_block_takes_a_segment_of_its_class(nbytes, allocated, reserved):
    device = CachingAllocator()
    device.allocate("a", nbytes)
    assert (device.allocated, device.reserved) == (allocated, reserved)


def test_small_blocks_share_a_segment_and_joined_ones_serve_larger():
    device = CachingAllocator()
    for key in range(4):
        device.allocate(key, 512 * KIB)
    assert device.reserved == 2 * MIB
    device.allocate(4, 512 * KIB)
    assert device.reserved == 4 * MIB
    device.free(1)
    device.free(2)
    device.allocate("joined", MIB)
    assert device.reserved == 4 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    device = CachingAllocator()
    for key, size in (("wide", 64), ("narrow", 32)):
        device.allocate(key, size * MIB)
    device.free("wide")
    device.free("narrow")
    device.allocate("a", 32 * MIB)
    device.allocate("b", 64 * MIB)
    assert device.reserved == 96 * MIB


def test_a_growing_tensor_leaves_holes_unless_segments_expand():
    """Each is larger than the one freed before: the old segments fit none of them."""
    reserved = {}
    for expandable in (False, True):
        device = CachingAllocator(expandable=expandable)
        for size in range(20, 120, 20):
            device.allocate(size, size * MIB)
            device.free(size)
        reserved[expandable] = device.reserved
    assert reserved == {False: (20 + 40 + 60 + 80 + 100) * MIB, True: 100 * MIB}


def test_streams_do_not_share():
    device = CachingAllocator()
    device.allocate("a", 20 * MIB, stream=0)
    device.free("a")
    device.allocate("b", 20 * MIB, stream=1)
    assert device.reserved == 40 * MIB


def test_a_full_device_gives_unused_segments_back_before_it_refuses():
    device = CachingAllocator(capacity=100 * MIB)
    device.allocate("a", 60 * MIB)
    device.free("a")
    device.allocate("b", 80 * MIB)
    assert device.reserved == 80 * MIB
    assert device.peak_reserved == 80 * MIB
    with pytest.raises(DeviceFullError):
        device.allocate("c", 40 * MIB)
    device.free("b")
    device.allocate("c", 40 * MIB)
    assert device.reserved == 80 * MIB


def test_reserved_memory_that_was_found_is_used_first():
    device = CachingAllocator()
    device.add_free(1 << 50, 64 * MIB)
    device.allocate("a", 40 * MIB)
    device.allocate("b", 20 * MIB)
    assert device.reserved == 64 * MIB


SIZES = st.integers(1, 40 * MIB) | st.integers(1, 2 * MIB) | st.sampled_from([512, MIB, 10 * MIB, 20 * MIB])


@given(st.lists(st.tuples(SIZES, st.integers(0, 1), st.integers(0, 9)), max_size=60), st.booleans())
def test_blocks_never_overlap_and_what_is_free_and_used_is_what_is_reserved(steps, expandable):
    """A tenth of the steps' numbers free what they find; addresses are the witness, sizes the account."""
    device, used = CachingAllocator(expandable=expandable), {}
    for place, (nbytes, stream, number) in enumerate(steps):
        if number < 5 and used:
            device.free(used.popitem()[1] if number < 3 else used.pop(next(iter(used))))
        else:
            device.allocate(place, nbytes, stream)
            used[place] = place
        blocks = [(block.pool, block) for block in device._used.values()]
        free = [(pool, block) for pool, found in device._free.items() for block in found]
        assert sum(block.size for _, block in blocks) == device.allocated
        assert sum(block.size for _, block in blocks + free) == device.reserved
        # In expandable mode each stream and class has addresses of its own.
        spans = sorted(
            (pool if expandable else (), block.address, block.address + block.size) for pool, block in blocks + free
        )
        for (pool, _, end), (other, start, _) in itertools.pairwise(spans):
            assert pool != other or end <= start
        for pool, block in free:
            for neighbour in (block.before, block.after):
                assert neighbour is None or neighbour.used, pool
