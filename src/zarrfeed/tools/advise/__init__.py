"""`zarrfeed info --advise`: what the layout of a store costs, and which one trains faster."""
