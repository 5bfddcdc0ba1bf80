"""A lab on one machine: hosts in namespaces of Linux, links of a chosen rate between them, real runs recorded in it."""
