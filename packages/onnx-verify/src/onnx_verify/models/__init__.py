"""Model files: loading them safely, cutting them into pieces, writing them."""
