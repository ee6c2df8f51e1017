"""Translation: sentence pairs, an encoder and a decoder, a search."""
