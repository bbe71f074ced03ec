"""Commands that write what a scheduler takes. None of them talks to one."""
