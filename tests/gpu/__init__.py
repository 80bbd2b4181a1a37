"""Tests of promises that only a GPU can show.

They run on a device that is faked in this process, too, wherever that tells anything.

`dev/gpu.sh tests` runs the tests of a GPU where there is one. Elsewhere they are skipped.
"""
