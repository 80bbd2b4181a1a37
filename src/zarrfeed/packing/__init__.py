"""Any data into one store, by one process or many: `pack` with its progress and report, and its proof."""
