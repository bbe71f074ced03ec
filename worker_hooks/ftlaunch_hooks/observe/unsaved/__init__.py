"""Finds state that training uses and no attached object saves. The state is kept where possible, or named once."""
