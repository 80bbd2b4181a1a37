#!/usr/bin/env bash
# Command line: look at a store, check it, measure it, and pack it for training.
#
#   bash examples/command_line.sh
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python - <<'PYTHON'
import numpy as np, zarr

array = zarr.create_array("train.zarr", shape=(2000, 32, 32), chunks=(7, 32, 32), dtype="f4")
array[:] = np.random.default_rng(0).normal(size=array.shape)
PYTHON

zarrfeed info train.zarr --batch-size 64                        # how it is read, before anything is
zarrfeed verify train.zarr                                      # whether each chunk decodes
zarrfeed stats train.zarr --output stats.json                   # mean, standard deviation, bounds
zarrfeed pack train.zarr -o packed.zarr --shuffle 7 --verify    # few large shards, in an order that is shuffled
zarrfeed info packed.zarr --batch-size 64
