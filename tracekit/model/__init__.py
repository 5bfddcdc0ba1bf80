"""From events to tables: steps, work, collectives, layers, memory. The only room that knows names.

tables makes them, run is their public face and kept keeps them. kinds tells events apart, by names; marks and steps
find the windows; device, operators and lanes what occupied a device; calls, backend, matching and mesh the collectives;
ranges and layers whose each moment was; moments and runs join by time and by recording; repairs tells what is wrong.
"""
