"""Pictures of the data that an epoch reads, and of their order: `zarrfeed info STORE --plot FILE`.

`pieces.py` asks the plans of all ranks; `row_figure.py` and `patch_figure.py` make arrays of them; the `draw` modules
draw these arrays, and work out nothing. `__init__.py` imports nothing, since matplotlib is an extra.
"""
