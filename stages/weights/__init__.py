"""Where do a model's weights and its tokenizer come from, and in which form? No engine and no trainer."""
