"""Units, formatting, masking, outliers. Pure, and used by several folders."""
