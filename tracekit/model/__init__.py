"""The model: from events to the tables of a run. The only room that knows the names of events.

- run is the public face; table_builder makes the tables, table_cache caches them on disk.
- names and patterns (the user's own) decide what an event is, event_kinds splits the events of a run by category.
- step_marks and steps find the windows of steps; memory makes the allocations; repairs reports faults of a run.
- devices/: what occupied a device (device_rows, cpu_work, work), its name (device_names), own time of CPU operators
  (operators), lanes that are serial and wrong ends (serial_lanes).
- collectives/: calls as issued, backend_spans, collectives with sizes, axes, bucket_layers, matching across ranks.
- attribution/: the layer and phase of a moment: ranges that name one, and layers, which looks them up.
- as_of joins by time, recordings by rank and cycle; device_time has unions and the compute cover per device.
"""
