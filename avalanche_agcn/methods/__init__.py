"""One file per method other than AGCN, with its strategy, its plugin and its maths."""
