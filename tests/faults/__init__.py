"""Faults, injected on purpose: each kind is a row of the table in docs/reliability.md, with how often it was tried.

python -m tests.faults.run            every row as often as the table says
python -m tests.faults.run --short    a few of each, as the tests do
"""
