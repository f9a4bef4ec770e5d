"""Running class statistics and the classifiers they give."""
