"""Memory of each device: over time, at its peak, what grows, and the ZeRO paper's closed form beside it."""
