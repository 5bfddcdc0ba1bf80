"""Memory of a rank: allocations and frees as recorded, the blocks that they make, and what each block was for."""
