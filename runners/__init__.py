"""The training programs that get traced: one short file a strategy, models in named sizes, launchers."""
