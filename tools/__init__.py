"""What the repository needs to look after itself: releases, the CI matrix, house checks."""
