"""Units, formatting, masking, outliers. Pure, and of no one room alone."""
