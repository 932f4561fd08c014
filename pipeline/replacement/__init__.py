"""Can another model take a place in a team? It is measured, taught, aligned and judged; runs lie below."""
