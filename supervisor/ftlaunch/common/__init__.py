"""Units, formatting, masking and outliers. Everything here is pure and is used by several folders."""
