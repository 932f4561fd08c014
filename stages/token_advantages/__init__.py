"""Which advantage has every token? Pure arithmetic over numpy arrays; no model, no file.

Legend: M turns of one part, N response tokens of all of them together, stored flat, turn after turn;
`lengths` (M,) says how many tokens each turn has. `mask` (N,) says which tokens are trained: in our
rows that is every response token, and code that is given others skips them, as if they were not there.
"""
