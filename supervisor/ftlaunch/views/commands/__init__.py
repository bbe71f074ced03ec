"""The commands of `ftctl` that show jobs: `dashboard`, `report` and `top`."""
