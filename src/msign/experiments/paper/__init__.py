"""`msign paper`: every figure and table of the paper, one small record for each."""
