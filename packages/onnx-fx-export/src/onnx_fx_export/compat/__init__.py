"""Entry points of torch's exporters under their names, for code that calls them."""
