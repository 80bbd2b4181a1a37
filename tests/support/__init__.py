"""What tests share: oracles, rank processes, and scripts that run in processes of their own."""
