"""How do several settings of rewards and credit compare over the same turns? One replay lies above."""
