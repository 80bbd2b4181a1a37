"""In which sequence an epoch reads its samples: blocks, lanes, and the permutation of rows in them."""
