"""Who acts, in what order, with which tools, and what is recorded? No engine, no reward, no cluster."""
