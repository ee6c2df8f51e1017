"""Classification of texts and images: one label for each."""
