"""The samples that a description names: one method after another, splits, joins, sequences."""
