"""Bytes that a step needs over time: the allocations of a rank, and what a caching allocator makes of them."""
