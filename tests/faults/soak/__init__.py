"""The soak: random configurations for a long time, every batch checked, and nothing left behind.

python -m tests.faults.soak --minutes 30
python -m tests.faults.soak --seed 7 --first 123 --count 1     repeats one of them

A configuration is drawn from (seed, number) alone: a store with its arrays (`draw.py`), and what is done with it
(`acts.py`). What must come of it is worked out in NumPy (`case.py`). What the process holds is measured between
configurations (`levels.py`).
"""
