"""From bytes somebody recorded to one frame of events: sniff, decompress, decode, time, ranks."""
