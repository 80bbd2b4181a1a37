"""`zarrfeed demo`: from netCDF files to a trained model and a measured rate, without network.

climate: real climate-model output -> Zarr stores. training: a small model learns from them. generated, rates: a
larger store, streamed by zarrfeed and by plain zarr. plot: both results as a picture. report: runs these and prints
what came out.
"""

from zarrfeed.tools.demo.run_demo import run_demo

__all__ = ["run_demo"]
