"""Rows of tables: Parquet, Arrow, Hugging Face's datasets."""
