// Special functions.
