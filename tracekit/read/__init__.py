"""Reading: from the bytes of trace files to frames of events.

- discovery/: which files a run consists of (sources), and the rank (ranks) and cycle (cycles) of each.
- decoding/: one file. archives opens it, also in a tar or zip, content decompresses it into blocks, batches cuts the
  text between events, events has the types they are decoded as, columns and arguments make frames of them, clock makes
  exact times, metadata is what the file has beside its events, lenient_json reads a damaged object, spellings has the
  few names that decoding needs, formats names files of other kinds.
- decode: all of that for one file; kineto: whether it is torch's; recovery: the events of damaged text; findings:
  faults, for the repairs table.
- traces: all files of a run together; trace_cache: opened files from one opening to the next, in entries as
  cache_entries writes and cache_seal seals them (so do the tables of a run, see model/table_cache.py).
"""
