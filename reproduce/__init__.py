"""One file per table or figure of the paper, results beside the code that made them."""
