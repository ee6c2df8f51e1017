"""One stream of tokens: density models (the next token) and masked language models."""
