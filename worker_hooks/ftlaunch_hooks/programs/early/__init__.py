"""The folder on the PYTHONPATH of ranks that attach by themselves: Python runs sitecustomize.py before their script."""
