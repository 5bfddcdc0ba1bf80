"""How long it takes: cost of communication, fabrics, task graphs, simulation. Pure functions of facts and plans."""
