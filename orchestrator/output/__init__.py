"""Lines: assemble, merge, mask, fold, and tame escape sequences."""
