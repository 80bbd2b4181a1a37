"""`zarrfeed info --advise`, and the choices of `zarrfeed pack`: what a layout costs, and which one trains faster.

`codec_trial` times candidates on real samples, `layout` chooses from their rates, `store_advice` describes a store.
"""
