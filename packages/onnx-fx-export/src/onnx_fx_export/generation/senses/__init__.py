"""What a folder's generator makes of images and sounds among the tokens of a text."""
