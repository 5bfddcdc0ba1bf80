"""From events to tables: steps, work, collectives, layers, memory. The only room that knows names."""
