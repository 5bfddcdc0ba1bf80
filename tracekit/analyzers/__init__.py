"""One question a module: a run in, a polars frame with documented columns out."""
