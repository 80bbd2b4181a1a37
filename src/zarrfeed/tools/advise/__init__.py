"""`zarrfeed info --advise`: the cost of a store's layout, and a layout that trains faster."""
